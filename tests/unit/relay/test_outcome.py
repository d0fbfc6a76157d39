"""Who goes, who waits: nothing is lost in between, and nobody overtakes within a key."""

from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from outbox.message import Message
from relay.outcome import Gate, runs
from relay.publication import Copy
from tests.support.copies import CREATED, copy_of

NOW = CREATED + timedelta(hours=1)
QUEUES = ("one", "two", "three")


def queue_for(_: str, queue: str | None) -> str:
    return queue or "celery"


@st.composite
def batches(draw: st.DrawFn) -> list[Copy]:
    made: list[Copy] = []
    for seq in range(draw(st.integers(0, 12))):
        key = draw(st.sampled_from([None, "k", "l"]))
        message = Message("a.b", queue=draw(st.sampled_from(QUEUES)), ordering_key=key)
        copy = copy_of(message, publication=draw(st.sampled_from([0, 0, 0, 1])))
        expires = draw(st.sampled_from([None, None, CREATED, NOW + timedelta(hours=1)]))
        ended = draw(st.sampled_from([False, False, True]))
        made.append(copy._replace(row=copy.row._replace(seq=seq, expires_at=expires, ended=ended)))
    return made


some_queues = st.dictionaries(st.sampled_from(QUEUES), st.just("why"), max_size=2)


@given(batch=batches(), paused=some_queues, closed=some_queues, data=st.data())
def test_everything_has_one_fate_and_keeps_its_place(
    batch: list[Copy], paused: dict[str, str], closed: dict[str, str], data: st.DataObject
) -> None:
    behind = {copy.row.id for copy in batch if data.draw(st.booleans()) and copy.row.ordering_key}
    going, fates = Gate(NOW, paused, closed, behind, queue_for).sort(batch)
    parked, expired = [one.row.id for one in fates.parked], [row.id for row in fates.expired]
    ended = [copy.row.id for copy in batch if copy.row.ended]
    assert sorted([copy.row.id for copy in going] + parked + expired + ended) == sorted(c.row.id for c in batch)
    assert [copy for copy in batch if copy in going] == going
    first = {key: [one.row.seq for one in fates.parked if one.row.ordering_key == key] for key in ("k", "l")}
    copies = {copy.row.id: copy for copy in batch}
    for copy in going:
        assert copy.row.queue not in paused.keys() | closed.keys()
        if copy.row.ordering_key and copy.publication == 0:
            assert copy.row.id not in behind
            waiting = [
                one.row.seq
                for one in fates.parked
                if one.row.ordering_key == copy.row.ordering_key and copies[one.row.id].publication == 0
            ]
            assert all(seq > copy.row.seq for seq in waiting), first


@given(batch=batches(), keeps_order=st.booleans())
def test_no_two_of_a_key_are_on_their_way_unless_they_go_whole(batch: list[Copy], keeps_order: bool) -> None:
    cut = list(runs(batch, keeps_order, queue_for))
    assert [copy for run in cut for copy in run] == batch
    assert all(cut), "no empty run"
    for run in cut:
        for key in ("k", "l"):
            queues = [copy.row.queue for copy in run if copy.row.ordering_key == key]
            assert len(queues) <= 1 or (keeps_order and len(set(queues)) == 1)
