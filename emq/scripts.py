"""The Lua transitions, and how a plan calls one.

Each transition is one file, `lua/<name>.lua`. The comment at its top is its contract, and this
module reads it:

    KEYS[n] name  type  meaning    the keys, and the arguments, in order; type `bytes?` (a `?`) may
    ARGV[n] name  type  meaning    be None as the last one, and is then left out; `ARGV[n..]` takes
                                   a list, and is the last one too; a line that is indented further
                                   goes on with the meaning
    DERIVES expression             a key that the script builds from the base
    RETURNS                        then a line an answer: the answer, two spaces, what it means;
                                   a line that is indented further goes on with the meaning
    COST                           how the work grows

A script is sent as it stands, comments included, so that who reads it on the server finds the
contract too. A line `-- INCLUDE name` is replaced with `lua/_<name>.lua`, once a script; the
DERIVES of what is included count as the script's own.

A `Transition` is a script bound to its contract: callers pass every declared name by keyword.

    reply = yield from COMPLETE(row=keys.job(held.id), token=held.token, result=None)

Files are read when a transition is first called.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from functools import cached_property
from operator import itemgetter
from typing import Any, Final, NamedTuple, NoReturn

from resp import ErrorReply, Plan, Reply, Script, ScriptCall, ServerError

from .errors import ContractError, escaped, refusal
from .ids import received_job_id

_FOLDER: Final = os.path.join(os.path.dirname(__file__), "lua")

_parameter = re.compile(r"(KEYS|ARGV)\[(\d+)(\.\.)?\] +(\w+) +(\S+) *(.*)").fullmatch
_answer = re.compile(r"  (\S.*?)(?: {2,}(.*))?").fullmatch
_include = re.compile(r"^-- INCLUDE (\w+)\n", re.MULTILINE)


class Parameter(NamedTuple):
    """A key or an argument of a script.

    Attributes:
        name: What callers pass it by.
        type: What it holds, without the `?`.
        optional: It may be None, and is then left out.
        rest: It is a list, and all its items are arguments.
        meaning: In words.
    """

    name: str
    type: str
    optional: bool
    rest: bool
    meaning: str


class Answer(NamedTuple):
    """One answer that a script may give.

    Attributes:
        text: A literal (`1`, `nil`, `scheduled`), the whole text of a refusal, a list's shape in
            brackets, or a number's or a text's name in angle brackets.
        meaning: In words.
    """

    text: str
    meaning: str


class Header(NamedTuple):
    """A script's contract.

    Attributes:
        name: The file's name, which its first line repeats.
        summary: What it does, in one sentence.
        keys, args: What to pass, in order.
        derives: Expressions for the keys it builds, those of what it includes among them.
        returns: What it may answer.
        cost: How the work grows.
    """

    name: str
    summary: str
    keys: tuple[Parameter, ...]
    args: tuple[Parameter, ...]
    derives: tuple[str, ...]
    returns: tuple[Answer, ...]
    cost: str


def source_of(name: str) -> str:
    """Answer a script's text, with what it includes in place."""
    included: set[str] = set()

    def expand(text: str) -> str:
        return _include.sub(lambda line: piece(line[1]), text)

    def piece(of: str) -> str:
        if of in included:
            return ""
        included.add(of)
        return expand(_read("_" + of))

    return expand(_read(name))


def header_of(source: str) -> Header:
    """Read the contract at the top of a script, and the DERIVES of what it includes.

    Raises:
        ValueError: A line of it is none that a header has; the message quotes it.
    """
    top = []
    for line in source.splitlines():
        if not line.startswith("--"):
            break
        top.append(line[3:])
    name, _, summary = top[0].partition(": ")
    parameters: dict[str, list[Parameter]] = {"KEYS": [], "ARGV": []}
    returns: list[Answer] = []
    cost: list[str] = []
    declared: list[Parameter] = []
    section: list[Any] | None = None
    for line in top[1:]:
        if line.startswith("DERIVES ") or not line:
            section = None
        elif line == "RETURNS":
            section = returns
        elif line.startswith("COST "):
            section = cost
            cost.append(line[5:])
        elif found := _parameter(line):
            section = declared = parameters[found[1]]
            if int(found[2]) != len(declared) + 1:
                raise ValueError(f"{name}: out of order in the header: {line}")
            declared.append(
                Parameter(found[4], found[5].rstrip("?"), "?" in found[5], bool(found[3]), found[6])
            )
        elif section is cost:
            cost.append(line.strip())
        elif declared and section is declared and line.startswith("    "):
            declared[-1] = declared[-1]._replace(meaning=f"{declared[-1].meaning} {line.strip()}")
        elif section is returns and (found := _answer(line)) and not line.startswith("    "):
            returns.append(Answer(found[1], found[2] or ""))
        elif section is returns and returns and line.startswith("    "):
            text, meaning = returns[-1]
            returns[-1] = Answer(text, f"{meaning} {line.strip()}")
        else:
            raise ValueError(f"{name}: not a line of a header: {line}")
    return Header(
        name=name,
        summary=summary,
        keys=tuple(parameters["KEYS"]),
        args=tuple(parameters["ARGV"]),
        derives=tuple(dict.fromkeys(re.findall(r"^-- DERIVES (.*)$", source, re.MULTILINE))),
        returns=tuple(returns),
        cost=" ".join(cost),
    )


class Transition:
    """A script bound to its contract.

    Calling it with every declared name is a plan that answers the script's reply. Its refusals are
    raised:

        JobError: The reply's first word is a class word; nothing was written.
        ServerError: Any other error reply.
        TypeError: A name is missing, or is not declared.

    `call` makes the command alone, for a list of commands that are flushed together; `reply` then
    does for one of their replies what the plan would have done.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"Transition({self.name!r})"

    @cached_property
    def header(self) -> Header:
        """The contract."""
        return header_of(self.script.source.decode())

    @cached_property
    def script(self) -> Script:
        """What is sent."""
        return Script(self.name, source_of(self.name))

    @cached_property
    def call(self) -> Callable[..., ScriptCall]:
        """Make the command, from every declared name by keyword."""
        script = self.script
        keys, args = self.header.keys, self.header.args
        key_names = [key.name for key in keys]
        arg_names = [arg.name for arg in args]
        declared = len(keys) + len(args)
        pick_keys, pick_args = _picker(key_names), _picker(arg_names)
        optional = bool(args) and args[-1].optional
        rest = bool(args) and args[-1].rest

        def call(**values: Any) -> ScriptCall:
            try:
                keys, args = pick_keys(values), pick_args(values)
            except KeyError:
                self._refuse(values, key_names + arg_names)
            if len(values) != declared:
                self._refuse(values, key_names + arg_names)
            if optional and args[-1] is None:
                args = args[:-1]
            elif rest:
                args = (*args[:-1], *args[-1])
            return ScriptCall(script, keys, args)

        return call

    def __call__(self, **values: Any) -> Plan[Any]:
        reply = yield self.call(**values)
        if type(reply) is ErrorReply:
            row = values.get("row")
            self.reply(reply, row and row.rpartition(":")[2])
        return reply

    def reply(self, reply: Reply, job_id: str | None = None) -> Reply:
        """Answer a reply, or raise what it refuses."""
        if type(reply) is ErrorReply:
            refused = refusal(reply.message, job_id)
            if refused is not None:
                raise refused
            raise ServerError(reply.code, reply.message, ScriptCall.command)
        return reply

    def count(self, reply: Reply) -> int:
        """Answer a reply that counts."""
        if type(reply) is not int:
            raise self.unexpected(reply)
        return reply

    def word(self, reply: Reply, *words: str) -> str:
        """Answer a reply that is one of a few words."""
        if type(reply) is bytes:
            for word in words:
                if reply == word.encode():
                    return word
        raise self.unexpected(reply)

    def ids(self, reply: Reply) -> list[str]:
        """Answer a reply, or a part of one, that is a list of ids."""
        return ids_of(self.name, reply)

    def unexpected(self, reply: Reply) -> ContractError:
        """The error for a reply that the header does not declare."""
        return ContractError(self.name, reply)

    def _refuse(self, values: Mapping[str, Any], declared: list[str]) -> NoReturn:
        missing = [name for name in declared if name not in values]
        extra = [name for name in values if name not in declared]
        raise TypeError(
            f"script {self.name} takes {', '.join(declared)}; "
            f"missing: {', '.join(missing) or 'none'}; not declared: {', '.join(extra) or 'none'}"
        )


def ids_of(name: str, reply: Reply) -> list[str]:
    """Answer a reply that is a list of jobs' ids as str.

    Raises:
        ContractError: It is not, or somebody wrote a member into the queue that is no job's id.
    """
    if type(reply) is not list or not all(type(id) is bytes for id in reply):
        raise ContractError(name, reply)
    return [id_of(name, reply, id) for id in reply]


def id_of(name: str, reply: Reply, id: bytes) -> str:
    """Answer a job's id, a part of a reply, as str.

    Raises:
        ContractError: It is none.
    """
    text = received_job_id(id)
    if text is None:
        raise ContractError(name, reply, f"'{escaped(id)}' for a job's id")
    return text


def names() -> list[str]:
    """Answer the names of all transitions, sorted."""
    files = (os.path.splitext(file) for file in os.listdir(_FOLDER))
    return sorted(name for name, kind in files if kind == ".lua" and not name.startswith("_"))


def _picker(names: list[str]) -> Callable[[Mapping[str, Any]], tuple[Any, ...]]:
    match names:
        case []:
            return lambda values: ()
        case [name]:
            return lambda values: (values[name],)
        case _:
            return itemgetter(*names)


def _read(name: str) -> str:
    with open(os.path.join(_FOLDER, name + ".lua"), encoding="utf-8") as file:
        return file.read()


ENQUEUE: Final = Transition("enqueue")
ENQUEUE_MANY: Final = Transition("enqueue_many")
CLAIM: Final = Transition("claim")
CLAIM_MANY: Final = Transition("claim_many")
TAKE: Final = Transition("take")
LEAVE: Final = Transition("leave")
COMPLETE: Final = Transition("complete")
COMPLETE_AND_CLAIM: Final = Transition("complete_and_claim")
RETRY: Final = Transition("retry")
DELAY: Final = Transition("delay")
EXTEND: Final = Transition("extend")
EXTEND_MANY: Final = Transition("extend_many")
GIVE_BACK: Final = Transition("give_back")
LOCK: Final = Transition("lock")
UNLOCK: Final = Transition("unlock")
PROMOTE: Final = Transition("promote")
REAP: Final = Transition("reap")
SWEEP_STALLED: Final = Transition("sweep_stalled")
PROGRESS: Final = Transition("progress")
LOG: Final = Transition("log")
UPDATE_PAYLOAD: Final = Transition("update_payload")
REMOVE: Final = Transition("remove")
REPROCESS: Final = Transition("reprocess")
PAUSE: Final = Transition("pause")
RESUME: Final = Transition("resume")
CONFIGURE: Final = Transition("configure")
DRAIN: Final = Transition("drain")
OBLITERATE: Final = Transition("obliterate")
FORGET: Final = Transition("forget")
COUNTS: Final = Transition("counts")
STATE: Final = Transition("state")
REPAIR: Final = Transition("repair")
RECOUNT: Final = Transition("recount")

__all__ = [
    "CLAIM",
    "CLAIM_MANY",
    "COMPLETE",
    "COMPLETE_AND_CLAIM",
    "CONFIGURE",
    "COUNTS",
    "DELAY",
    "DRAIN",
    "ENQUEUE",
    "ENQUEUE_MANY",
    "EXTEND",
    "EXTEND_MANY",
    "FORGET",
    "GIVE_BACK",
    "LEAVE",
    "LOCK",
    "LOG",
    "OBLITERATE",
    "PAUSE",
    "PROGRESS",
    "PROMOTE",
    "REAP",
    "RECOUNT",
    "REMOVE",
    "REPAIR",
    "REPROCESS",
    "RESUME",
    "RETRY",
    "STATE",
    "SWEEP_STALLED",
    "TAKE",
    "UNLOCK",
    "UPDATE_PAYLOAD",
    "Answer",
    "Header",
    "Parameter",
    "Transition",
    "header_of",
    "id_of",
    "ids_of",
    "names",
    "source_of",
]
