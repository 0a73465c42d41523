"""Jobs that stand: somebody does not enter, nobody is seen to be at fault, or somebody is gone; and pauses that end by themselves."""

from eagle_eye.app.evaluation.synthetic_cluster.job_scenario import JobScenario, ScenarioPair, as_drill, worker_or_gpu

PAIRS = (
    ScenarioPair(
        JobScenario(name="one worker does not enter the collective: it hangs", kind="hang", fault=True, at=worker_or_gpu, happen=as_drill("worker hangs")),
        JobScenario(name="one worker evaluates, the others wait", kind="hang", fault=False, happen=as_drill("one worker evaluates")),
    ),
    ScenarioPair(
        JobScenario(name="worker hangs, its peers time out", kind="hang", fault=True, at=worker_or_gpu, happen=as_drill("worker hangs in its backward pass, its peers time out")),
        JobScenario(name="one worker compiles, the others wait", kind="hang", fault=False, happen=as_drill("one worker compiles")),
    ),
    ScenarioPair(
        JobScenario(name="worker stopped by a signal", kind="hang", fault=True, at=worker_or_gpu, happen=as_drill("worker stopped by a signal")),
        JobScenario(name="a debugger holds a worker", kind="hang", fault=False, happen=as_drill("a debugger holds a worker")),
    ),
    ScenarioPair(
        JobScenario(name="worker stands and does nothing", kind="hang", fault=True, at=worker_or_gpu, happen=as_drill("worker stands without a proof")),
        JobScenario(name="one worker waits for its input", kind="hang", fault=False, happen=as_drill("one worker waits for its input")),
    ),
    ScenarioPair(
        JobScenario(name="all wait for one another", kind="hang", fault=True, happen=as_drill("all wait for one another")),
        JobScenario(name="all save a checkpoint", kind="hang", fault=False, happen=as_drill("all save a checkpoint")),
    ),
    ScenarioPair(
        JobScenario(name="worker ends too early, with code 0", kind="death", fault=True, at=worker_or_gpu, happen=as_drill("worker ends too early")),
        JobScenario(name="all workers end", kind="death", fault=False, happen=as_drill("all workers end well")),
    ),
)
