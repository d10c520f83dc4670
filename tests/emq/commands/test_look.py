"""`emq ls`, `emq show`, `emq peek`."""

from __future__ import annotations

import base64

import pytest

from emq import Queue
from tests.conftest import Server

from ..conftest import Keys
from .conftest import GROUP, OTHER_GROUP, Emq, Hands, claimed, dead


def row_of(lines: list[str], name: str) -> list[str]:
    [row] = [line.split() for line in lines if line.split()[:1] == [name]]
    return row


# ls


def test_ls_finds_queues_and_counts_their_jobs(run: Emq, queue: Queue) -> None:
    dead(queue)
    queue.complete((queue.enqueue(b"p"), claimed(queue))[1])
    queue.enqueue_many([b"p"] * 4)
    queue.enqueue(b"p", delay_ms=60_000)
    claimed(queue)

    done = run("ls")

    assert done.lines[0].split()[:4] == ["QUEUE", "PENDING", "ACTIVE", "SCHEDULE"]
    assert row_of(done.lines, queue.name)[1:7] == ["3", "1", "1", "1", "1", "1"]


def test_ls_of_named_queues_tells_of_no_other(run: Emq, queue: Queue, fresh_name: str) -> None:
    queue.enqueue(b"p")

    [one, none] = run("ls", queue.name, f"{fresh_name}-2", "--json").documents

    assert (one["queue"], one["pending"]) == (queue.name, 1)
    assert one["oldest_ms"] is not None
    assert (none["pending"], none["oldest_ms"], none["paused"]) == (0, None, False)
    assert none["errors"] == {}


def test_ls_tells_lanes_apart(run: Emq, queue: Queue, hands: Hands) -> None:
    queue.enqueue(b"p")
    for _ in range(2):
        hands.laned()
    hands.laned(OTHER_GROUP)

    done = run("ls", queue.name)

    assert done.lines[0].split()[1:3] == ["PENDING", "LANES"]
    assert row_of(done.lines, queue.name)[1:3] == ["1", "3"]
    [told] = run("ls", queue.name, "--json").documents
    assert told["lanes"] == {GROUP: 2, OTHER_GROUP: 1}


@pytest.mark.parametrize("suffix", ["paused", "gactive"])
def test_a_lane_out_of_rotation_is_counted(
    run: Emq, queue: Queue, hands: Hands, keys: Keys, suffix: str
) -> None:
    hands.laned()
    keys.admin.delete(f"{keys.base}ring")
    if suffix == "paused":
        keys.admin.sadd(keys.base + suffix, GROUP)
    else:
        keys.admin.hset(keys.base + suffix, GROUP, 1)

    [told] = run("ls", queue.name, "--json").documents

    assert told["lanes"] == {GROUP: 1}


def test_the_oldest_is_by_the_ids_whatever_their_order(
    run: Emq, queue: Queue, hands: Hands, keys: Keys
) -> None:
    queue.enqueue(b"p")
    long_ago = "JOB0EEMl9I7KXg"
    hands.laned()
    hands.put(f"g:{GROUP}:pending", hands.row(long_ago, payload="p", group=GROUP))

    [told] = run("ls", queue.name, "--json").documents

    assert told["oldest_ms"] > 3600_000


def test_what_cannot_be_read_is_an_error_and_no_zero(run: Emq, queue: Queue, keys: Keys) -> None:
    queue.enqueue(b"p")
    keys.admin.set(f"{keys.base}dead", "x")

    done = run("ls", queue.name, code=1)

    assert row_of(done.lines, queue.name)[1:5] == ["1", "0", "0", "error"]
    assert f"dead of queue {queue.name} could not be read: WRONGTYPE" in done.err
    [told] = run("ls", queue.name, "--json", code=1).documents
    assert told["dead"] is None
    assert "WRONGTYPE" in told["errors"]["dead"]


def test_a_paused_queue_says_so(run: Emq, queue: Queue) -> None:
    queue.enqueue(b"p")
    queue.pause()
    assert row_of(run("ls", queue.name).lines, queue.name)[-1] == "paused"

    queue.resume()
    queue.set_concurrency(1)
    claimed(queue)
    assert row_of(run("ls", queue.name).lines, queue.name)[-3:] == ["at", "its", "ceiling"]


def test_reading_claims_no_server(run: Emq, queue: Queue, server: Server) -> None:
    version = server.admin.getdel("{emq}:version")
    try:
        run("ls", queue.name)
        assert server.admin.get("{emq}:version") is None
        server.admin.set("{emq}:version", "echomq:2.0.0")
        assert "--wire-version" in run("ls", code=1).err
        run("ls", queue.name, "--wire-version", "echomq:2.0.0")
    finally:
        server.admin.set("{emq}:version", version)


# show


def test_show_a_queue(run: Emq, queue: Queue, keys: Keys) -> None:
    queue.enqueue_many([b"p"] * 2)
    queue.enqueue(b"p", delay_ms=60_000)
    claimed(queue)
    queue.set_concurrency(7)
    queue.set_events(True)
    keys.admin.zadd(f"{keys.base}parked", {"someone": 1})

    facts = run("show", queue.name).facts

    assert facts["pending"] == "1"
    assert facts["ceiling"] == "7"
    assert facts["events"] == "on"
    assert facts["idle workers"] == "1"
    assert facts["next due"].startswith("in 5") or facts["next due"] == "in 1m"
    assert facts["next lease end"].startswith("in 29")
    [told] = run("show", queue.name, "--json").documents
    assert (told["concurrency"], told["events"], told["waiting_workers"]) == (7, True, 1)
    assert told["leases"] == {"lapsed": 0, "soon": 0, "later": 1}
    assert 0 < told["next_due_ms"] <= 60_000


def test_a_queue_that_nobody_has_used_is_told(run: Emq, queue: Queue) -> None:
    for command in ("show", "ls"):
        assert f"nobody has used queue {queue.name} yet; emq ls" in run(command, queue.name).err
        assert not run(command, queue.name, "--json").err
    queue.pause()
    for command in ("show", "ls"):
        assert not run(command, queue.name).err


def test_show_tells_of_leases_that_have_ended(run: Emq, queue: Queue, keys: Keys) -> None:
    queue.enqueue(b"p")
    keys.admin.zadd(f"{keys.base}active", {claimed(queue).id: 1}, xx=True)

    facts = run("show", queue.name).facts

    assert "ago (1 with a lease that has ended)" in facts["next lease end"]


def test_show_says_what_it_could_not_read(run: Emq, queue: Queue, keys: Keys) -> None:
    for suffix in ("pending", "schedule", "meta", "parked"):
        keys.admin.set(keys.base + suffix, "x")

    done = run("show", queue.name, code=1)

    facts = done.facts
    for name in ("pending", "oldest waits", "schedule", "next due", "paused", "idle workers"):
        assert facts[name].startswith("error: WRONGTYPE"), name
    assert facts["active"] == "0"
    assert "could not be read" in done.err


def test_show_the_longest_lanes(run: Emq, queue: Queue, hands: Hands) -> None:
    for _ in range(2):
        hands.laned()
    for digit in "12345":
        hands.laned(f"PRT0EEMl9I7KX{digit}")

    lanes = run("show", queue.name).facts["lanes"]

    assert lanes.startswith(f"7 jobs wait: {GROUP} 2, PRT0EEMl9I7KX1 1, ")
    assert lanes.endswith(" and 1 lanes more")


@pytest.mark.parametrize("protocol", ["2", "3"])
def test_both_protocols_tell_the_same(
    run: Emq, queue: Queue, server: Server, protocol: str
) -> None:
    queue.enqueue(b"p", run_at_ms=1)
    queue.enqueue(b"p")
    job = claimed(queue)
    url = f"{server.url}?protocol={protocol}"
    [told] = run("show", queue.name, "--json", url=url).documents
    assert told["next_due_ms"] < -1_000_000_000_000
    assert 29_000 < told["next_lease_end_ms"] <= 30_000
    [told] = run("show", queue.name, job.id, "--json", url=url).documents
    assert told["lease_end_ms"] > 1_000_000_000_000


def test_a_date_beyond_the_calendar_is_told_in_ms(run: Emq, queue: Queue, hands: Hands) -> None:
    id = hands.put("schedule", hands.row(state="scheduled", payload="p"), 2**52)
    assert f"({2**52} ms)" in run("show", queue.name, id).facts["due"]


def test_a_group_of_no_form_is_no_lane(run: Emq, queue: Queue, keys: Keys) -> None:
    keys.admin.rpush(f"{keys.base}ring", "nonsense")
    keys.admin.rpush(f"{keys.base}ring", GROUP)
    keys.admin.set(f"{keys.base}g:{GROUP}:pending", "x")
    [told] = run("ls", queue.name, "--json", code=1).documents
    assert list(told["errors"]) == [f"lane {GROUP}"]


def test_show_a_job_escapes_what_its_producer_wrote(run: Emq, queue: Queue) -> None:
    id = queue.enqueue(b"\x1b[2J\xff\\" + "é".encode() + b"x" * 60).job_id
    job = claimed(queue)
    queue.progress(job, "half\nway")
    queue.log(id, "\x07one")

    done = run("show", queue.name, id)

    assert "\x1b" not in done.out
    assert "\x07" not in done.out
    facts = done.facts
    assert facts["state"] == "active"
    assert facts["attempts"] == "1"
    assert facts["progress"] == "half\\nway"
    assert facts["log"] == "\\x07one"
    assert facts["payload"].startswith("68 B: \\x1b[2J\\xff\\\\éxxx")
    assert facts["payload"].endswith("x...")
    assert facts["lease ends"].startswith("in 29")
    assert run("show", queue.name, id, "--full").facts["payload"].endswith("x" * 60)


def test_show_a_job_as_json_loses_no_byte(run: Emq, queue: Queue) -> None:
    text, data = queue.enqueue("é\n").job_id, queue.enqueue(b"\xff\x00").job_id
    [told] = run("show", queue.name, text, "--json").documents
    assert (told["payload"], told["place"], told["logs"]) == ("é\n", "pending", [])
    [told] = run("show", queue.name, data, "--json").documents
    assert base64.b64decode(told["payload_base64"]) == b"\xff\x00"


def test_show_a_dead_job_says_why(run: Emq, queue: Queue) -> None:
    facts = run("show", queue.name, dead(queue, error="no such card")).facts
    assert (facts["state"], facts["last error"]) == ("dead", "no such card")


def test_show_says_where_row_and_place_disagree(run: Emq, queue: Queue, hands: Hands) -> None:
    id = hands.put("dead", hands.row(state="pending", payload="p"))
    assert run("show", queue.name, id).facts["state"] == "dead, its row says pending"


def test_show_old_log_lines_on_request(run: Emq, queue: Queue) -> None:
    id = queue.enqueue(b"p").job_id
    for number in range(12):
        queue.log(id, f"line {number}")
    assert "2 older lines; --full shows them" in run("show", queue.name, id).out
    assert "line 0" in run("show", queue.name, id, "--full").out


def test_show_a_job_that_is_done_by_its_outcome(run: Emq, queue: Queue) -> None:
    id = queue.enqueue(b"p", result_ttl_ms=60_000).job_id
    queue.complete(claimed(queue), b"42")
    assert run("show", queue.name, id).facts["result"] == "42"
    [told] = run("show", queue.name, id, "--json").documents
    assert (told["state"], told["result"], told["error"]) == ("completed", "42", None)


def test_show_how_a_removed_job_died(run: Emq, queue: Queue, keys: Keys) -> None:
    id = queue.enqueue(b"p", result_ttl_ms=60_000).job_id
    queue.retry(claimed(queue), delay_ms=0, max_attempts=1, error="no\ncard")
    keys.admin.delete(f"{keys.base}job:{id}")
    facts = run("show", queue.name, id).facts
    assert (facts["state"], facts["error"]) == ("dead", "no\\ncard")


def test_show_no_job_is_refused(run: Emq, queue: Queue) -> None:
    assert "no such job" in run("show", queue.name, "JOB0EEMl9I7KXg", code=1).err


@pytest.mark.parametrize("argv", [["show", "em q"], ["show", "q", "nonsense"], ["show", "emq"]])
def test_names_and_ids_are_checked_first(run: Emq, argv: list[str]) -> None:
    assert "usage: emq show" in run(*argv, code=2, url="unix:///nowhere").err


# peek


def test_peek_shows_the_next_jobs(run: Emq, queue: Queue) -> None:
    ids = [receipt.job_id for receipt in queue.enqueue_many([b"p", b"qq", b"rrr"])]

    done = run("peek", queue.name, "-n", "2")

    assert [line.split()[0] for line in done.lines] == ["JOB", *ids[:2]]
    assert [line.split()[-2] for line in done.lines[1:]] == ["1", "2"]


def test_peek_elsewhere(run: Emq, queue: Queue) -> None:
    killed = dead(queue, error="no\ncard")
    due = queue.enqueue(b"p", delay_ms=60_000).job_id
    held = (queue.enqueue(b"p"), claimed(queue))[1].id

    assert "no\\ncard" in run("peek", queue.name, "--place", "dead").out
    [told] = run("peek", queue.name, "--place", "dead", "--json").documents
    assert (told["job"], told["last_error"], told["attempts"]) == (killed, "no\ncard", 1)
    [told] = run("peek", queue.name, "--place", "schedule", "--json").documents
    assert told["job"] == due
    assert told["due_ms"] > 1_700_000_000_000
    line = run("peek", queue.name, "--place", "active").lines[1]
    assert line.startswith(held)
    assert " in 2" in line


def test_peek_into_an_empty_place_says_so(run: Emq, queue: Queue) -> None:
    done = run("peek", queue.name, "--place", "dead")
    assert (done.out, done.err) == (
        "",
        f"emq: nothing is in dead; emq show {queue.name} tells what is where\n",
    )
    assert run("peek", queue.name, "--json").out == ""
