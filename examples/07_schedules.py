"""Pipeline schedules on plain numbers: made, checked, timed, drawn and compared; then the same for a real model."""

from semu import ScheduleError, compare_schedules
from semu.runfile import load_run
from semu.schedule import ALL_SCHEDULES, FlowModule, PipelineShape, PipelineStudy, Schedule, draw_grid, stage_flow
from semu.schedule.compare import compare_schedules as compare_on_numbers
from semu.schedule.compare import comparison_table
from semu.schedule.files import to_csv

MIB = 1 << 20
family = ALL_SCHEDULES["zb-v"]  # two chunks on each of 4 ranks, 8 microbatches
shape = family.shape(4, 8, 2)
schedule = family(shape)
schedule.validate(shape)
study = PipelineStudy.of(shape, forward_s=0.010, input_s=0.011, weight_s=0.008, held_bytes=300 * MIB, transfer_s=2e-4)
found = study.evaluate(schedule)
print(f"{found.name}: {found.makespan_s * 1e3:.1f} ms, bubble {found.bubble_ratio:.1%}, {found.peak_bytes // MIB} MiB")
print(draw_grid(found, study.arrays, columns=108))
print(to_csv(schedule).splitlines()[0])

try:  # a schedule of one's own
    Schedule.from_text("0F0 0B1 0F1 0B0\n1F0 1B0 1F1 1B1", "mine").validate(PipelineShape.chain(2, 2))
except ScheduleError as error:
    print(error)

encoders = [FlowModule("vision", (0, 1)), FlowModule("audio", (2,), trains=False)]  # side by side, into a backbone
flow = stage_flow(4, 6, [*encoders, FlowModule("llm", (0, 1, 2, 3), ("vision", "audio"), sub_microbatches=2)])
made = ALL_SCHEDULES["greedy"].on(PipelineStudy.of(flow, forward_s=[2, 2, 3, 1, 1, 1, 1]))
print(made.to_text())

compared, refused = compare_on_numbers(4, 10, forward_s=0.020, input_s=0.022, weight_s=0.016, held_bytes=600 * MIB)
print(comparison_table(compared, 600 * MIB))
print(refused)

comparison = compare_schedules(load_run("vlm-m"), ["zb-h1", "zb-v", "interleaved", "hanayo"])
print(comparison)  # comparison.draw("schedules.png") and comparison.save("out") put it on disk
