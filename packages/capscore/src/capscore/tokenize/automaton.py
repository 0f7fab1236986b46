"""A small scanner generator: of the patterns that match at a place in a text, the longest match wins, then the first.

Python's `re` takes the first alternative that matches, not the longest, and backs up without limit. Here the patterns
become one automaton whose states are worked out when a text first needs them.

A pattern is written as for `re`, with `|`, `( )`, `[ ]`, `[^ ]`, `?`, `*`, `+`, `{m,n}`, and `\\` before a character
that would otherwise be syntax; `{NAME}` stands for another pattern. Letters are matched in either case, those in [ ]
exactly. `[^]` is any character.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Lock

# What Java's upper, lower and title case make equal to an ASCII letter, beside its other case.
CASE_FRIENDS = {"i": "\u0130\u0131", "k": "\u212a", "s": "\u017f"}

SYNTAX = set("()[]{}|?*+\\")


@dataclass(frozen=True)
class CharacterSet:
    """Some characters: those listed, and those for which one of the predicates holds; or all the others."""

    characters: frozenset[str]
    predicates: frozenset[Callable[[str], bool]] = frozenset()
    negated: bool = False

    def __contains__(self, character: str) -> bool:
        listed = character in self.characters or any(holds(character) for holds in self.predicates)
        return listed != self.negated


def with_both_cases(characters: str) -> frozenset[str]:
    both = set(characters)
    for character in characters:
        if character.isascii() and character.isalpha():
            both |= {character.lower(), character.upper(), *CASE_FRIENDS.get(character.lower(), "")}
    return frozenset(both)


@dataclass
class Node:
    """A state of the automaton as the patterns spell it: where it leads on a character, and where without one."""

    on: list[tuple[int, int]] = field(default_factory=list)  # (number of a character set, node)
    freely: list[int] = field(default_factory=list)


class Scanner:
    """All patterns at once. `step` is the automaton: state and character to state; 0 is the state without a way out."""

    def __init__(
        self, patterns: Sequence[str], fragments: Mapping[str, str], categories: Mapping[str, Callable[[str], bool]]
    ) -> None:
        """`fragments` are patterns that others name; `categories` are predicates named likewise, also inside [ ]."""
        self.fragments, self.categories = fragments, categories
        self.nodes: list[Node] = []
        self.sets: list[CharacterSet] = []
        self.number_of_set: dict[CharacterSet, int] = {}
        start = self.new_node()
        self.pattern_at: dict[int, int] = {}  # final node → pattern
        for number, pattern in enumerate(patterns):
            first, last = self.parse(pattern)
            self.nodes[start].freely.append(first)
            self.pattern_at[last] = number
        self.kinds: dict[tuple[bool, ...], int] = {}  # which sets a character is in → its kind
        self.kind_of: dict[str, int] = {}
        self.members: list[tuple[bool, ...]] = []
        self.reached: dict[int, frozenset[int]] = {}
        self.states: list[frozenset[int]] = [frozenset()]
        self.number_of_state: dict[frozenset[int], int] = {frozenset(): 0}
        self.accepted: list[int | None] = [None]
        self.steps: dict[tuple[int, int], int] = {}
        self.rows: list[dict[str, int]] = [{}]  # per state, where the ASCII characters met so far lead: a short cut
        self.lock = Lock()  # held while the tables above grow
        self.start = self.state([start])

    # ---- patterns to nodes

    def new_node(self) -> int:
        self.nodes.append(Node())
        return len(self.nodes) - 1

    def edge(self, characters: CharacterSet) -> tuple[int, int]:
        number = self.number_of_set.setdefault(characters, len(self.sets))
        if number == len(self.sets):
            self.sets.append(characters)
        first, last = self.new_node(), self.new_node()
        self.nodes[first].on.append((number, last))
        return first, last

    def join(self, pieces: list[tuple[int, int]]) -> tuple[int, int]:
        first = last = self.new_node()
        for begin, end in pieces:
            self.nodes[last].freely.append(begin)
            last = end
        return first, last

    def choose(self, pieces: list[tuple[int, int]]) -> tuple[int, int]:
        first, last = self.new_node(), self.new_node()
        for begin, end in pieces:
            self.nodes[first].freely.append(begin)
            self.nodes[end].freely.append(last)
        return first, last

    def parse(self, pattern: str) -> tuple[int, int]:
        piece, end = self.parse_choice(pattern, 0)
        if end != len(pattern):
            raise ValueError(f"unbalanced bracket at {end} in {pattern}")
        return piece

    def parse_choice(self, pattern: str, at: int) -> tuple[tuple[int, int], int]:
        choices: list[tuple[int, int]] = []
        pieces: list[tuple[int, int]] = []
        while at < len(pattern) and pattern[at] != ")":
            if pattern[at] == "|":
                choices.append(self.join(pieces))
                pieces, at = [], at + 1
                continue
            begin = at
            piece, at = self.parse_atom(pattern, begin)
            least, most, after = parse_count(pattern, at)
            repeats = [piece] + [self.parse_atom(pattern, begin)[0] for _ in range(max(least, most or 1, 1) - 1)]
            if most is None:
                first, last = repeats[-1]
                self.nodes[last].freely.append(first)
            joined = self.join(repeats)
            optional = repeats[least:] if most is not None else repeats[: max(1 - least, 0)]
            for first, _ in optional:
                self.nodes[first].freely.append(joined[1])
            pieces.append(joined)
            at = after
        choices.append(self.join(pieces))
        return self.choose(choices), at

    def parse_atom(self, pattern: str, at: int) -> tuple[tuple[int, int], int]:
        character = pattern[at]
        if character == "(":
            piece, end = self.parse_choice(pattern, at + 1)
            if pattern[end : end + 1] != ")":
                raise ValueError(f"missing ) in {pattern}")
            return piece, end + 1
        if character == "{":
            end = pattern.index("}", at)
            name = pattern[at + 1 : end]
            if name in self.categories:
                return self.edge(CharacterSet(frozenset(), frozenset([self.categories[name]]))), end + 1
            return self.parse(self.fragments[name]), end + 1
        if character == "[":
            return self.parse_set(pattern, at + 1)
        if character == "\\":
            return self.edge(CharacterSet(with_both_cases(pattern[at + 1]))), at + 2
        if character in SYNTAX:
            raise ValueError(f"misplaced {character} at {at} in {pattern}")
        return self.edge(CharacterSet(with_both_cases(character))), at + 1

    def parse_set(self, pattern: str, at: int) -> tuple[tuple[int, int], int]:
        negated = pattern[at] == "^"
        at += negated
        listed, predicates = "", set()
        while pattern[at] != "]":
            if pattern[at] == "{":
                end = pattern.index("}", at)
                predicates.add(self.categories[pattern[at + 1 : end]])
                at = end + 1
                continue
            at += pattern[at] == "\\"
            begin = pattern[at]
            at += 1
            if pattern[at] == "-" and pattern[at + 1] != "]":
                at += 1 + (pattern[at + 1] == "\\")
                listed += "".join(map(chr, range(ord(begin), ord(pattern[at]) + 1)))
                at += 1
            else:
                listed += begin
        return self.edge(CharacterSet(frozenset(listed), frozenset(predicates), negated)), at + 1

    # ---- nodes to states

    def from_node(self, node: int) -> frozenset[int]:
        """Nodes that follow freely from a node: those that lead on by a character or end a pattern."""
        if node not in self.reached:
            reached, waiting = {node}, [node]
            while waiting:
                following = [other for other in self.nodes[waiting.pop()].freely if other not in reached]
                reached.update(following)
                waiting += following
            self.reached[node] = frozenset(
                other for other in reached if self.nodes[other].on or other in self.pattern_at
            )
        return self.reached[node]

    def state(self, nodes: Sequence[int]) -> int:
        """The number of the state that these nodes and all that follow freely from them make up."""
        members = frozenset[int]().union(*map(self.from_node, nodes))
        number = self.number_of_state.setdefault(members, len(self.states))
        if number == len(self.states):
            self.states.append(members)
            self.rows.append({})
            self.accepted.append(min((self.pattern_at[n] for n in members if n in self.pattern_at), default=None))
        return number

    def kind(self, character: str) -> int:
        """Characters that no pattern tells apart are of one kind."""
        number = self.kind_of.get(character)
        if number is None:
            member = tuple(character in characters for characters in self.sets)
            number = self.kinds.setdefault(member, len(self.members))
            if number == len(self.members):
                self.members.append(member)
            self.kind_of[character] = number
        return number

    def step(self, state: int, character: str) -> int:
        """The state after this character."""
        with self.lock:
            kind = self.kind(character)
            following = self.steps.get((state, kind))
            if following is None:
                member = self.members[kind]
                following = self.state(
                    [node for origin in self.states[state] for number, node in self.nodes[origin].on if member[number]]
                )
                self.steps[state, kind] = following
            if character < "\x80":  # not more, so that no text can make the rows grow without limit
                self.rows[state][character] = following
            return following

    def can_continue(self, state: int) -> bool:
        return any(self.nodes[node].on for node in self.states[state])


def parse_count(pattern: str, at: int) -> tuple[int, int | None, int]:
    """Least and most times that the atom before `at` may stand (None: no limit), and where the pattern goes on."""
    mark = pattern[at : at + 1]
    if mark in ("?", "*", "+"):
        return (1 if mark == "+" else 0), (1 if mark == "?" else None), at + 1
    if mark == "{" and pattern[at + 1].isdigit():
        end = pattern.index("}", at)
        least, comma, most = pattern[at + 1 : end].partition(",")
        return int(least), (int(most) if most else None if comma else int(least)), end + 1
    return 1, 1, at
