"""stream.py: admission, order, staleness, resume, and what is dropped, with programs that end when the test says so."""

import itertools
import time
from concurrent.futures import Future
from types import SimpleNamespace

import pytest

from rollout import Run
from sampler import Generation
from sandbox import Execution, Sandbox
from stream import Stream

OK = Execution("ok", 0)


class FakeCollector:
    """Programs are numbers; each ends when end(index) is called, or at once."""

    def __init__(self, at_once=False, workers=4, sample_batch=100):
        self.at_once, self.sample_batch, self.started, self.abandoned = at_once, sample_batch, {}, []
        self.sandbox = SimpleNamespace(workers=workers, abandon=lambda future: self.abandoned.append(future))

    def sample(self, policy, indices, version):
        return [Run(i, "scratch", [1], Generation([2], [-0.1], "stop"), "", "x", version) for i in indices]

    def start(self, run):
        run.future, run.started_at = Future(), time.monotonic()
        self.started[run.index] = run
        if self.at_once:
            self.end(run.index)

    def end(self, *indices):
        for index in indices:
            self.started[index].ended_at = time.monotonic()
            self.started[index].future.set_result(OK)

    def finish(self, runs):
        assert all(run.future.done() for run in runs)
        return runs


def indices(batch) -> list[int]:
    return [run.index for run in batch.episodes]


def stream(collector, mode, **options):
    return Stream(collector, mode, **{"batch_size": 4, "steps": 5, **options})


def test_sync_takes_each_batch_whole_and_in_order():
    made = stream(FakeCollector(at_once=True), "sync")
    assert [indices(made.next_batch(None, version)) for version in range(3)] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    assert all(run.policy_version == 0 for run in itertools.islice(made.collector.started.values(), 4))


def test_async_without_staleness_is_sync():
    whole, ahead = (stream(FakeCollector(at_once=True), mode, max_staleness=0) for mode in ("sync", "async"))
    for version in range(5):
        a, b = whole.next_batch(None, version), ahead.next_batch(None, version)
        assert indices(a) == indices(b) and a.inverse_inclusion == b.inverse_inclusion == [1.0] * 4
        assert [r.policy_version for r in a.episodes] == [r.policy_version for r in b.episodes] == [version] * 4


def test_async_admits_ahead_takes_the_oldest_that_ended_and_drops_nothing():
    collector = FakeCollector()
    made = stream(collector, "async", max_staleness=1)
    ends = iter([(7, 2, 0, 1, 3), (8, 9, 10), (11, 4, 15, 12)])

    def wait_and_end(enough):
        collector.end(*next(ends))
        assert enough()

    made._wait = wait_and_end
    assert [indices(made.next_batch(None, version)) for version in range(3)] == [[0, 1, 2, 3], [7, 8, 9, 10], [4, 11, 12, 15]]
    assert len(collector.started) == 16  # (version 2 + 1 + staleness 1) x 4
    assert [run.index for run in made.runs] == [5, 6, 13, 14] and collector.abandoned == []


def test_async_uses_every_sample_once_and_stops_admitting_at_the_end():
    collector = FakeCollector(at_once=True, sample_batch=3)
    made = stream(collector, "async", max_staleness=2)
    used = [index for version in range(5) for index in indices(made.next_batch(None, version))]
    assert used == list(range(20)) and len(collector.started) == 20 and made.runs == []
    assert max(run.index // 4 - run.policy_version for run in collector.started.values()) == 2


def test_two_ranks_take_the_samples_of_one():
    one = stream(FakeCollector(at_once=True), "sync")
    two = [stream(FakeCollector(at_once=True), "sync", rank=rank, world=2) for rank in (0, 1)]
    for version in range(3):
        assert indices(one.next_batch(None, version)) == [i for s in two for i in indices(s.next_batch(None, version))]


def test_a_resumed_stream_skips_and_doubles_nothing():
    def run(stop_after):
        collector = FakeCollector(at_once=True)
        made, used = stream(collector, "async", max_staleness=1), []
        for version in range(5):
            if version == stop_after:
                state = made.state()
                collector = FakeCollector(at_once=True)
                made = stream(collector, "async", max_staleness=1)
                made.load_state([state])
            used.append([(run.index, run.policy_version) for run in made.next_batch(None, version).episodes])
        return used

    assert run(3) == run(None) == run(1)


@pytest.mark.parametrize("mode", ["sync", "async", "restart"])
@pytest.mark.parametrize("worlds", [(2, 1), (1, 2), (1, 4), (2, 4), (2, 2), (4, 1, 2)])
def test_a_stream_resumed_on_another_number_of_ranks_skips_and_doubles_nothing(mode, worlds):
    used, versions, states = [], iter(range(5)), []
    for world in worlds:
        streams = [stream(FakeCollector(workers=2), mode, rank=rank, world=world, max_staleness=2) for rank in range(world)]
        for made in streams:
            if states:
                made.load_state(states)
            made._wait = lambda enough, started=made.collector.started: end_newest(started, enough)
        for version in itertools.islice(versions, 5 if world == worlds[-1] else 2):
            for batch in [made.next_batch(None, version) for made in streams]:
                assert len(batch.episodes) == 4 // world
                assert mode == "async" or all(run.policy_version == version for run in batch.episodes)
                used += indices(batch)
        states = [made.state() for made in streams]
    assert len(used) == len(set(used)) == 20
    assert mode == "restart" or sorted(used) == list(range(20))


def end_newest(started, enough):
    """End the newest runs first, so that old ones are left for later batches."""
    for index in sorted((i for i, run in started.items() if not run.future.done()), reverse=True):
        if enough():
            break
        FakeCollector.end(SimpleNamespace(started=started), index)


def test_the_windows_of_all_ranks_are_shared_out_without_doubles():
    states = [{"sampled": 2, "runs": [], "windows": [{"finished_s": [r + 10.0 * step], "dropped_s": []} for step in range(3)]}
              for r in range(2)]  # fmt: skip
    for world, rank, expected in ((2, 1, [1, 11, 21]), (1, 0, [0, 1, 10, 11, 20, 21]), (4, 3, [21])):
        made = stream(FakeCollector(), "restart", rank=rank, world=world)
        made.load_state(states)
        assert [window.finished_s[0] for window in made.windows] == expected


def test_restart_takes_the_first_to_finish_and_abandons_the_rest():
    collector = FakeCollector()
    made = stream(collector, "restart", batch_size=2)

    def wait_and_end(enough):
        running = [i for i, run in collector.started.items() if not run.future.done()]
        collector.end(*[i for i in running if i % 3][:1])  # every third program never ends
        assert enough()

    made._wait = wait_and_end
    batch = made.next_batch(None, 0)
    assert indices(batch) == [1, 2] and len(collector.abandoned) == len(collector.started) - 2 and made.runs == []
    assert len(batch.inverse_inclusion) == 2 and min(batch.inverse_inclusion) > 0
    assert made.next_batch(None, 1).episodes[0].index > max(indices(batch))
    assert len(made.windows) == 2


@pytest.mark.parametrize("when", ["waiting", "running"])
def test_an_abandoned_run_ends_soon(when):
    with Sandbox() as sandbox:
        sandbox.run("", None)
        first = sandbox.submit("import time; time.sleep(30)", None)
        second = sandbox.submit("import time; time.sleep(30)", None)
        time.sleep(0.3)
        started = time.monotonic()
        sandbox.abandon(second if when == "waiting" else first)
        if when == "waiting":
            assert second.cancelled()
            sandbox.abandon(first)
        assert first.result(5).status == "infra_error"
        if when == "running":
            sandbox.abandon(second)
        assert sandbox.run("print(1)", None).stdout == "1\n" and time.monotonic() - started < 5
