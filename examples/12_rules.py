"""A schedule of one's own as a rule (FlexPipe): its picture, its weight gradients put into bubbles, rules explored."""

from semu.runfile import load_run
from semu.schedule import Depth, PipelineStudy, Placement, Priority, Schedule, draw_grid, rule_text, separate
from semu.schedule.exploration.plain import explore
from semu.simulation import simulate

rule = Priority(prefer="alternate", forward=Depth(), backward=Depth(), in_flight="p * v")
study = PipelineStudy.of(Placement.V_SHAPE.shape(4, 6, 2), forward_s=1, input_s=1, weight_s=1)
mine = Schedule("mine", rule.on(study))  # one forward, one backward, later chunks first, within p microbatches
late = separate(mine, study)  # weight gradients into bubbles, in the memory that the order had
for schedule in (mine, late):
    found = study.evaluate(schedule)
    print(f"{found.makespan_s:g} s, bubble {found.bubble_ratio:.1%}, at most {max(found.peak_bytes)} stages held")
    print(draw_grid(found, study.arrays, unit_s=1.0, columns=112))
print(rule_text(rule))

print(explore(4, 6, split=True).table(top=3))

inner = rule_text(Priority(prefer="alternate", forward=Depth(), in_flight="2*p"))
for text in ("1f1b", f"bidirectional/2: separated inner={{{inner}}}"):  # a rule's text is a schedule's name
    job = load_run("llama3-8b", [f'training.schedule="{text}"'], cluster="h100:2x8", parallel="tp2-pp4")
    print(f"{simulate(job).iteration_time_s:.3f} s under {text}")
