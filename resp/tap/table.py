"""What is known of each server command: its keys, its payloads, what it answers, whether it blocks.

A command is a line of `_TABLE`: its name, what its arguments are, and behind `=>` what it answers.
What stands for an argument:

    name        an argument, and what to call it          @name     a key
    !name       payload: a value that a user stores       &name     a member of a set
    %name       a script's source                         ^name     a digest
    NAME        a word of the command's own               name?     one that may be left out

and for several of them:

    (a b)*      again and again, up to what must follow   a*        the same of one
    #(a b)      a number, and that many                   {a b}     one half, and the other half
    [A x | B]   options, in any order, each with what it takes
    a+          as many as there were groups of the last #(...)

In an answer `<...>` is an aggregate, and what stands for a string is said of all strings inside of
an aggregate that is met in its place. `? WORD answer` is the answer of a command that has WORD
among its arguments. A command without `=>` answers payload, if it answers strings at all. `~`
before a name: it blocks. ENTRIES are those of a stream.

The keys are those that COMMAND GETKEYS answers; a test asks a server for all of its commands.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple, TypeAlias, cast

from .dialogue import CONTAINERS, command_name


class Place(NamedTuple):
    """What an argument, or a string in an answer, is.

    Attributes:
        role: `argument`, `key`, `payload`, `script`, `digest` or `command`.
        label: What to call it.
        private: Whether it may be what a user stored: payload, members, and what is not known.
    """

    role: str
    label: str
    private: bool = False


class Many(NamedTuple):
    """A group, again and again.

    Attributes:
        least: How many places what follows it needs.
        until: Words that end it.
    """

    group: Pattern
    least: int = 0
    until: frozenset[bytes] = frozenset()


class Counted(NamedTuple):
    """A number, what to call it, and that many groups."""

    group: Pattern
    number: Place


class Again(NamedTuple):
    """As many places as there were groups of the last `Counted`."""

    place: Place


class Halves(NamedTuple):
    """Places of one kind, and as many of another."""

    first: Place
    second: Place


class Maybe(NamedTuple):
    """A place that may be left out; `least` is how many places what follows it needs."""

    place: Place
    least: int = 0


class Options(NamedTuple):
    """Words in any order, each with what it takes."""

    words: dict[bytes, Pattern]


class Inside(NamedTuple):
    """An aggregate, in an answer."""

    pattern: Pattern


Item: TypeAlias = "Place | Many | Counted | Again | Halves | Maybe | Options | Inside"
Pattern: TypeAlias = "tuple[Item, ...]"


class Command(NamedTuple):
    """What is known of a command.

    Attributes:
        name: In capitals, with its subcommand.
        words: Words that are its name: 1 or 2.
        arguments: What follows the name.
        reply: What it answers, or None if nothing is said of it.
        variants: Words, and what a command that has them among its arguments answers.
        blocks: It may wait until somebody else does something.
    """

    name: str
    words: int
    arguments: Pattern
    reply: Item | None
    variants: tuple[tuple[bytes, Item], ...]
    blocks: bool


NAME: Final = Place("command", "command")
SUBCOMMAND: Final = Place("command", "subcommand")
OPTION: Final = Place("argument", "option")
UNKNOWN: Final = Place("argument", "argument", private=True)
"""An argument of which nothing is known."""
VALUE: Final = Place("payload", "value", private=True)

_TABLE: Final = """
GET,GETDEL @key => !value
GETEX @key [EX seconds | PX ms | EXAT unix_seconds | PXAT unix_ms | PERSIST] => !value
GETRANGE,SUBSTR @key start end => !value
GETSET @key !value => !value
SET @key !value [NX | XX | GET | IFEQ !comparison | KEEPTTL | EX seconds | PX ms | EXAT unix_seconds | PXAT unix_ms] => !value
SETNX,APPEND,DELIFEQ @key !value
SETEX @key seconds !value
PSETEX @key ms !value
SETRANGE @key offset !value
MGET @key* => <!value*>
MSET,MSETNX (@key !value)*
MSETEX #(@key !value) [NX | XX | KEEPTTL | EX seconds | PX ms | EXAT unix_seconds | PXAT unix_ms]
INCR,DECR,STRLEN,TTL,PTTL,EXPIRETIME,PEXPIRETIME,PERSIST @key
INCRBY @key increment
DECRBY @key decrement
INCRBYFLOAT @key increment => number
LCS @key @key [LEN | IDX | MINMATCHLEN length | WITHMATCHLEN] => !common ? IDX word
BITCOUNT @key start end [BYTE | BIT]
BITPOS @key bit start end [BYTE | BIT]
BITOP operation @destination @key*
BITFIELD @key [GET encoding offset | SET encoding offset !value | INCRBY encoding offset increment | OVERFLOW behaviour]
BITFIELD_RO @key [GET encoding offset]
GETBIT @key offset
SETBIT @key offset bit
DEL,UNLINK,EXISTS,TOUCH,WATCH @key*
TYPE @key => type
DUMP @key => !serialized
RESTORE,RESTORE-ASKING @key ttl_ms !serialized [REPLACE | ABSTTL | IDLETIME seconds | FREQ frequency]
EXPIRE @key seconds [NX | XX | GT | LT]
PEXPIRE @key ms [NX | XX | GT | LT]
EXPIREAT @key unix_seconds [NX | XX | GT | LT]
PEXPIREAT @key unix_ms [NX | XX | GT | LT]
RENAME,RENAMENX @key @new_key
COPY @source @destination [DB database | REPLACE]
MOVE @key database
MIGRATE host port @key database timeout_ms [COPY | REPLACE | AUTH password | AUTH2 username password | KEYS @key*]
OBJECT|ENCODING,OBJECT|FREQ,OBJECT|IDLETIME,OBJECT|REFCOUNT @key => word
MEMORY|USAGE @key [SAMPLES count]
SORT,SORT_RO @key [BY pattern | LIMIT offset count | GET pattern | ASC | DESC | ALPHA | STORE @destination] => <!element*>
KEYS pattern => <@key*>
SCAN cursor [MATCH pattern | COUNT count | TYPE type] => <cursor <@key*>>
CLUSTERSCAN cursor [MATCH pattern | COUNT count | TYPE type | SLOT slot] => <cursor <@key*>>
RANDOMKEY => @key
HGET @key field => !value
HSET,HMSET @key (field !value)*
HSETNX @key field !value
HMGET @key field* => <!value*>
HGETALL @key => <(field !value)*>
HDEL @key field*
HEXISTS,HSTRLEN @key field
HKEYS @key => <field*>
HVALS @key => <!value*>
HLEN @key
HINCRBY @key field increment
HINCRBYFLOAT @key field increment => number
HRANDFIELD @key count [WITHVALUES] => field ? WITHVALUES <(field !value)*>
HSCAN @key cursor [MATCH pattern | COUNT count | NOVALUES] => <cursor <(field !value)*>> ? NOVALUES <cursor <field*>>
HSETEX @key [NX | XX | FNX | FXX | KEEPTTL | EX seconds | PX ms | EXAT unix_seconds | PXAT unix_ms | FIELDS #(field !value)]
HGETEX @key [PERSIST | EX seconds | PX ms | EXAT unix_seconds | PXAT unix_ms | FIELDS #(field)] => <!value*>
HGETDEL @key [FIELDS #(field)] => <!value*>
HEXPIRE @key seconds [NX | XX | GT | LT | FIELDS #(field)]
HPEXPIRE @key ms [NX | XX | GT | LT | FIELDS #(field)]
HEXPIREAT @key unix_seconds [NX | XX | GT | LT | FIELDS #(field)]
HPEXPIREAT @key unix_ms [NX | XX | GT | LT | FIELDS #(field)]
HTTL,HPTTL,HEXPIRETIME,HPEXPIRETIME,HPERSIST @key [FIELDS #(field)]
LPUSH,RPUSH,LPUSHX,RPUSHX @key !element*
LPOP,RPOP @key count => !element
LRANGE @key start stop => <!element*>
LINDEX @key index => !element
LSET @key index !element
LINSERT @key where !pivot !element
LREM @key count !element
LPOS @key !element [RANK rank | COUNT count | MAXLEN length]
LLEN @key
LTRIM @key start stop
LMOVE @source @destination from to => !element
~BLMOVE @source @destination from to seconds => !element
RPOPLPUSH @source @destination => !element
~BRPOPLPUSH @source @destination seconds => !element
LMPOP #(@key) from [COUNT count] => <@key <!element*>>
~BLMPOP seconds #(@key) from [COUNT count] => <@key <!element*>>
~BLPOP,BRPOP @key* seconds => <@key !element>
SADD,SREM @key &member*
SISMEMBER @key &member
SMISMEMBER @key &member*
SMEMBERS @key => <&member*>
SPOP,SRANDMEMBER @key count => &member
SCARD @key
SMOVE @source @destination &member
SSCAN @key cursor [MATCH pattern | COUNT count] => <cursor <&member*>>
SINTER,SUNION,SDIFF @key* => <&member*>
SINTERSTORE,SUNIONSTORE,SDIFFSTORE @destination @key*
SINTERCARD #(@key) [LIMIT limit]
ZADD @key [NX | XX | GT | LT | CH | INCR] (score &member)* => score
ZINCRBY @key increment &member => score
ZSCORE @key &member => score
ZMSCORE @key &member* => <score*>
ZREM @key &member*
ZRANK,ZREVRANK @key &member [WITHSCORE] => score
ZCARD @key
ZCOUNT,ZREMRANGEBYSCORE @key min_score max_score
ZLEXCOUNT,ZREMRANGEBYLEX @key &min &max
ZREMRANGEBYRANK @key start stop
ZRANGE @key start stop [BYSCORE | BYLEX | REV | LIMIT offset count | WITHSCORES] => <&member*> ? WITHSCORES <(&member score)*>
ZREVRANGE @key start stop [WITHSCORES] => <&member*> ? WITHSCORES <(&member score)*>
ZRANGEBYSCORE @key min_score max_score [WITHSCORES | LIMIT offset count] => <&member*> ? WITHSCORES <(&member score)*>
ZREVRANGEBYSCORE @key max_score min_score [WITHSCORES | LIMIT offset count] => <&member*> ? WITHSCORES <(&member score)*>
ZRANGEBYLEX @key &min &max [LIMIT offset count] => <&member*>
ZREVRANGEBYLEX @key &max &min [LIMIT offset count] => <&member*>
ZRANGESTORE @destination @source min max [BYSCORE | BYLEX | REV | LIMIT offset count]
ZPOPMIN,ZPOPMAX @key count => <(&member score)*>
~BZPOPMIN,BZPOPMAX @key* seconds => <@key &member score>
ZMPOP #(@key) where [COUNT count] => <@key <(&member score)*>>
~BZMPOP seconds #(@key) where [COUNT count] => <@key <(&member score)*>>
ZRANDMEMBER @key count [WITHSCORES] => &member ? WITHSCORES <(&member score)*>
ZSCAN @key cursor [MATCH pattern | COUNT count | NOSCORES] => <cursor <(&member score)*>> ? NOSCORES <cursor <&member*>>
ZUNION,ZINTER #(@key) [WEIGHTS weight+ | AGGREGATE function | WITHSCORES] => <&member*> ? WITHSCORES <(&member score)*>
ZDIFF #(@key) [WITHSCORES] => <&member*> ? WITHSCORES <(&member score)*>
ZUNIONSTORE,ZINTERSTORE,ZDIFFSTORE @destination #(@key) [WEIGHTS weight+ | AGGREGATE function]
ZINTERCARD #(@key) [LIMIT limit]
GEOADD @key [NX | XX | CH] (longitude latitude &member)*
GEODIST @key &member &member unit => distance
GEOHASH @key &member* => <hash*>
GEOPOS @key &member* => <coordinate*>
GEORADIUS,GEORADIUS_RO @key longitude latitude radius unit [WITHCOORD | WITHDIST | WITHHASH | COUNT count | ANY | ASC | DESC | STORE @destination | STOREDIST @destination] => <(<&member detail*>)*>
GEORADIUSBYMEMBER,GEORADIUSBYMEMBER_RO @key &member radius unit [WITHCOORD | WITHDIST | WITHHASH | COUNT count | ANY | ASC | DESC | STORE @destination | STOREDIST @destination] => <(<&member detail*>)*>
GEOSEARCH @key [FROMMEMBER &member | FROMLONLAT longitude latitude | BYRADIUS radius unit | BYBOX width height unit | BYPOLYGON #(longitude latitude) | ASC | DESC | COUNT count | ANY | WITHCOORD | WITHDIST | WITHHASH] => <(<&member detail*>)*>
GEOSEARCHSTORE @destination @source [FROMMEMBER &member | FROMLONLAT longitude latitude | BYRADIUS radius unit | BYBOX width height unit | BYPOLYGON #(longitude latitude) | ASC | DESC | COUNT count | ANY | STOREDIST]
PFADD @key !element*
PFCOUNT @key*
PFMERGE @destination @source*
PFDEBUG operation @key
XADD @key [NOMKSTREAM | MAXLEN [= | ~] threshold | MINID [= | ~] threshold | LIMIT limit] id (field !value)* => id
XLEN @key
XDEL @key id*
XACK @key group id*
XTRIM @key [MAXLEN [= | ~] threshold | MINID [= | ~] threshold | LIMIT limit]
XSETID @key id [ENTRIESADDED entries | MAXDELETEDID id]
XRANGE @key start end [COUNT count] => ENTRIES
XREVRANGE @key end start [COUNT count] => ENTRIES
XREAD [COUNT count | BLOCK ms] STREAMS {@key id} => <(@key ENTRIES)*>
XREADGROUP GROUP group consumer [COUNT count | BLOCK ms | NOACK] STREAMS {@key id} => <(@key ENTRIES)*>
XPENDING @key group [IDLE ms] start end count consumer => word
XCLAIM @key group consumer idle_ms id* [IDLE ms | TIME unix_ms | RETRYCOUNT count | FORCE | JUSTID | LASTID id] => ENTRIES ? JUSTID <id*>
XAUTOCLAIM @key group consumer idle_ms start [COUNT count | JUSTID] => <id ENTRIES <id*>> ? JUSTID <id <id*> <id*>>
XGROUP|CREATE @key group id [MKSTREAM | ENTRIESREAD entries]
XGROUP|SETID @key group id [ENTRIESREAD entries]
XGROUP|DESTROY @key group
XGROUP|CREATECONSUMER,XGROUP|DELCONSUMER @key group consumer
XGROUP word* => word
XINFO|STREAM @key [FULL | COUNT count] => <(name !detail)*>
XINFO|GROUPS @key => word
XINFO|CONSUMERS @key group => word
PUBLISH,SPUBLISH channel !message
SUBSCRIBE,SSUBSCRIBE,UNSUBSCRIBE,SUNSUBSCRIBE channel*
PSUBSCRIBE,PUNSUBSCRIBE pattern*
PUBSUB|CHANNELS,PUBSUB|SHARDCHANNELS pattern => <channel*>
PUBSUB|NUMSUB,PUBSUB|SHARDNUMSUB channel* => <channel*>
EVAL,EVAL_RO %script #(@key) !argument*
EVALSHA,EVALSHA_RO ^digest #(@key) !argument*
FCALL,FCALL_RO function #(@key) !argument*
SCRIPT|LOAD %script => ^digest
SCRIPT|EXISTS ^digest*
SCRIPT|SHOW ^digest => %script
SCRIPT word* => word
FUNCTION|LOAD [REPLACE] %library => name
FUNCTION|RESTORE !serialized word
FUNCTION|DUMP => !serialized
FUNCTION|LIST word* => word ? WITHCODE %library
FUNCTION word* => word
AUTH username? password
HELLO version [AUTH username password | SETNAME name] => word
ACL|DRYRUN username command !argument* => word
ACL word* => word
COMMAND|GETKEYS command !argument* => <@key*>
COMMAND|GETKEYSANDFLAGS command !argument* => <(<@key flag*>)*>
COMMAND word* => word
CONFIG|SET (parameter value)*
CONFIG|GET parameter* => <(parameter value)*>
CONFIG word* => word
CLIENT|SETINFO attribute value
CLIENT|SETNAME name
CLIENT word* => word
CLUSTER|KEYSLOT key
CLUSTER|GETKEYSINSLOT slot count => <@key*>
CLUSTER word* => word
SLOWLOG|GET count => <(<id time us <!argument*> address name>)*>
COMMANDLOG|GET count type => <(<id time size <!argument*> address name>)*>
SLOWLOG,COMMANDLOG,LATENCY,MEMORY,MODULE,PUBSUB,OBJECT,XINFO,SENTINEL word* => word
ECHO !message => !message
PING !message => !message
SELECT database
SWAPDB database database
INFO section* => word
LOLWUT,REPLCONF,FAILOVER,SHUTDOWN,FLUSHALL,FLUSHDB,BGSAVE,REPLICAOF,SLAVEOF,PSYNC word* => word
ROLE,TIME,RESET,QUIT,SAVE,BGREWRITEAOF,LASTSAVE,DBSIZE,SYNC,MULTI,DISCARD,UNWATCH => word
READONLY,READWRITE,ASKING,PFSELFTEST,MONITOR => word
EXEC
DEBUG !argument* => !value
~WAIT replicas ms
~WAITAOF local replicas ms
"""  # noqa: E501

_ENTRIES: Final = "<(<id <(field !value)*>>)*>"  # of a stream

_TOKEN: Final = re.compile(r"#\(|\)\*|[()\[\]|{}<>=~]|[@!&%^]?[A-Za-z0-9_-]+[*?+]?")
_ROLES: Final = {"@": "key", "!": "payload", "&": "argument", "%": "script", "^": "digest"}
_PRIVATE: Final = frozenset("!&")
_CLOSERS: Final = frozenset({")", ")*", "]", "|", "}", ">"})


class _Reader:
    """Reads one line of the table."""

    def __init__(self, text: str) -> None:
        self._tokens: list[str] = _TOKEN.findall(text)
        self._at = 0

    def pattern(self) -> Pattern:
        """Read up to what closes it."""
        items: list[Item] = []
        while self._at < len(self._tokens) and self._tokens[self._at] not in _CLOSERS:
            items.append(self._item(self._next()))
        least = 0  # places that what follows needs
        until: frozenset[bytes] = frozenset()
        for at in range(len(items) - 1, -1, -1):
            item = items[at]
            if isinstance(item, Many):
                items[at] = item._replace(least=least, until=until)
            elif isinstance(item, Maybe):
                items[at] = item._replace(least=least)
            least += isinstance(item, Place | Inside)
            until = frozenset(item.words) if isinstance(item, Options) else frozenset()
        return tuple(items)

    def _next(self) -> str:
        self._at += 1
        return self._tokens[self._at - 1]

    def _item(self, token: str) -> Item:
        match token:
            case "(":
                group = self.pattern()
                self._next()
                return Many(group)
            case "#(":
                group = self.pattern()
                self._next()
                keys = isinstance(group[0], Place) and group[0].role == "key"
                return Counted(group, Place("argument", "numkeys" if keys else "count"))
            case "{":
                first, second = self.pattern()
                assert isinstance(first, Place)
                assert isinstance(second, Place)
                self._next()
                return Halves(first, second)
            case "<":
                inside = self.pattern()
                self._next()
                return Inside(inside)
            case "[":
                words: dict[bytes, Pattern] = {}
                closer = ""
                while closer != "]":
                    word = self._next()
                    words[word.encode()] = self.pattern()
                    closer = self._next()
                return Options(words)
        match token[-1]:
            case "*":
                return Many((_place(token[:-1]),))
            case "?":
                return Maybe(_place(token[:-1]))
            case "+":
                return Again(_place(token[:-1]))
        return _place(token)


def _place(token: str) -> Place:
    if token.isupper():
        return OPTION
    role = _ROLES.get(token[0])
    label = token if role is None else token[1:]
    return Place(role or "argument", label.replace("_", " "), token[0] in _PRIVATE)


def read_reply(text: str) -> Item:
    """Read what stands behind `=>`."""
    (item,) = _Reader(text.replace("ENTRIES", _ENTRIES)).pattern()
    return item


def _lines() -> dict[str, str]:
    lines = {}
    for line in _TABLE.strip().splitlines():
        names, _, _ = line.lstrip("~").partition(" ")
        for name in names.split(","):
            lines[name.replace("|", " ")] = line
    return lines


_LINES: Final = _lines()
_commands: dict[str, Command | None] = {}  # what was read of _LINES


def _read(name: str) -> Command:
    line = _LINES[name]
    head, _, answers = line.partition(" => ")
    _, _, arguments = head.partition(" ")
    variants = []
    reply = None
    if answers:
        first, *others = answers.split(" ? ")
        reply = read_reply(first)
        for other in others:
            word, _, answer = other.partition(" ")
            variants.append((word.encode(), read_reply(answer)))
    return Command(
        name=name,
        words=2 if name.encode() in CONTAINERS else name.count(" ") + 1,
        arguments=_Reader(arguments).pattern(),
        reply=reply,
        variants=tuple(variants),
        blocks=line.startswith("~"),
    )


def find(words: Sequence[bytes]) -> Command | None:
    """Answer what is known of a command, by its first words."""
    if not words:
        return None
    name = command_name(tuple(words[:2]))
    if name in _commands:
        return _commands[name]
    known = name if name in _LINES else name.partition(" ")[0]
    found = _read(known) if known in _LINES else None
    if len(_commands) < _MOST:
        _commands[name] = found
    return found


_MOST: Final = 4096  # names that are remembered, whatever peers say


def arguments(words: Sequence[bytes], total: int | None = None) -> list[Place]:
    """Answer what each argument of a command is, its name included.

    Args:
        words: Its first arguments, as they are.
        total: How many it has in all, if some are still to come.
    """
    total = len(words) if total is None or total < len(words) else total
    command = find(words)
    if command is None:
        return [NAME, *[UNKNOWN] * len(words)][: len(words)]
    walk = _Walk(words, total)
    walk.places[0] = NAME
    if command.words == 2 and len(words) > 1:
        walk.places[1] = SUBCOMMAND
    walk.go(command.arguments, command.words)
    return walk.places


class _Walk:
    """Lays a pattern over arguments. What has no place in it stays unknown."""

    def __init__(self, words: Sequence[bytes], total: int) -> None:
        self.places = [UNKNOWN] * len(words)
        self._words = words
        self._known = len(words)
        self._total = total
        self._counted = 0

    def go(self, pattern: Pattern, at: int) -> int:
        """Lay a pattern from an argument on; answer where it ends."""
        places, known, total = self.places, self._known, self._total
        for item in pattern:
            if at >= known:
                break
            if isinstance(item, Place):
                places[at] = item
                at += 1
            elif isinstance(item, Many):
                at = self._many(item, at)
            elif isinstance(item, Counted):
                places[at] = item.number
                self._counted = _number(self._words[at])
                at += 1
                end = min(at + self._counted * len(item.group), total)
                while at < end and at < known:
                    at = self.go(item.group, at)
            elif isinstance(item, Options):
                words = self._words
                while at < known:
                    follows = item.words.get(words[at].upper())
                    if follows is None:
                        break
                    places[at] = OPTION
                    at += 1
                    if follows:
                        at = self.go(follows, at)
            elif isinstance(item, Halves):
                half = at + (total - at + 1) // 2
                for place in range(at, known):
                    places[place] = item.first if place < half else item.second
                at = known
            elif isinstance(item, Again):
                end = min(at + self._counted, known)
                places[at:end] = [item.place] * (end - at)
                at = end
            elif isinstance(item, Maybe) and total - at > item.least:
                places[at] = item.place
                at += 1
        return at

    def _many(self, many: Many, at: int) -> int:
        end = min(self._total - many.least, self._known)
        group = many.group
        if many.until:
            words = self._words
            while at < end and words[at].upper() not in many.until:
                at = self.go(group, at)
            return at
        if at < end:
            # Groups are single places, or several side by side.
            flat = cast("tuple[Place, ...]", group)
            width, count = len(flat), end - at
            places = flat * (count // width + 1)
            self.places[at:end] = places[:count]
        return max(at, end)


_COUNT: Final = re.compile(rb"[0-9]{1,9}")


def _number(word: bytes) -> int:
    return int(word) if _COUNT.fullmatch(word) else 0


def keys(words: Sequence[bytes]) -> list[bytes]:
    """Answer a command's keys, in order."""
    places = arguments(words)
    found = [word for word, place in zip(words, places, strict=True) if place.role == "key"]
    if words and words[0].upper() == b"MIGRATE":
        return [key for key in found if key]  # "" is there where KEYS follow
    return found


def blocks(words: Sequence[bytes]) -> bool:
    """Say whether a command may wait until somebody else does something."""
    command = find(words)
    if command is None:
        return False
    if command.name in ("XREAD", "XREADGROUP"):
        places = arguments(words)
        return any(
            place is OPTION and word.upper() == b"BLOCK"
            for word, place in zip(words, places, strict=True)
        )
    return command.blocks


def reply_of(words: Sequence[bytes]) -> Item | None:
    """Answer what stands in the reply to a command; None if that is not known."""
    command = find(words)
    if command is None:
        return None
    if command.variants:
        said = {word.upper() for word in words[2:]}
        for word, reply in command.variants:
            if word in said:
                return reply
    return command.reply


__all__ = [
    "NAME",
    "OPTION",
    "SUBCOMMAND",
    "UNKNOWN",
    "VALUE",
    "Again",
    "Command",
    "Counted",
    "Halves",
    "Inside",
    "Item",
    "Many",
    "Maybe",
    "Options",
    "Pattern",
    "Place",
    "arguments",
    "blocks",
    "find",
    "keys",
    "read_reply",
    "reply_of",
]
