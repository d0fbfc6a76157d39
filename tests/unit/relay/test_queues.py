"""Open, closed, half open; each refusal of a probe doubles the pause."""

from relay.queues import Queues


def test_a_refusal_closes_and_an_acceptance_opens() -> None:
    queues = Queues()
    assert queues.refuse("q", "no", 0.0)
    assert queues.closed == {"q": "no"}
    assert queues.probes(0.5) == {}
    assert queues.probes(1.3) == {"q": 1}
    assert queues.closed == {}, "half open: the probe passes"
    assert queues.troubled
    assert queues.accepted({"q", "other"}) == ["q"]
    assert queues.reopened
    assert not queues.troubled


def test_the_pause_doubles_with_every_probe_that_is_refused_up_to_a_minute() -> None:
    queues, now, pauses = Queues(), 0.0, list[float]()
    queues.refuse("q", "no", now)
    for _ in range(10):
        started = now
        while not queues.probes(now):
            now += 0.1
        pauses.append(now - started)
        assert not queues.refuse("q", "no", now)
    assert pauses[0] < 1.5
    assert 45 < pauses[-1] < 75


def test_several_refusals_of_one_batch_are_one() -> None:
    queues = Queues()
    for _ in range(20):
        queues.refuse("q", "no", 0.0)
    assert queues.probes(1.3) == {"q": 1}


def test_a_probe_without_an_answer_is_followed_by_more() -> None:
    queues = Queues()
    queues.refuse("q", "no", 0.0)
    assert [queues.probes(2.0 * turn)["q"] for turn in (1, 2, 3)] == [1, 2, 4]


def test_what_an_earlier_leader_closed_is_probed_at_once() -> None:
    queues = Queues()
    queues.remember("q", "no", 5.0)
    assert queues.closed == {"q": "no"}
    assert queues.probes(5.0) == {"q": 1}
    queues.forget("q")
    assert not queues.troubled
