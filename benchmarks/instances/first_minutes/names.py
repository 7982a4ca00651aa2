# what is there, asked as in a notebook
import semu

assert "PipelineStudy" in dir(semu.schedule) and "ALL_SCHEDULES" in dir(semu.schedule)
print(sorted(semu.schedule.ALL_SCHEDULES))
