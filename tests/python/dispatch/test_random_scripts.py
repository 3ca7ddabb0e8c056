"""Random scripts: 200 in each run, more with FASTJIT_SCRIPTS=first:last (`make fuzz-scripts` plays 5,000)."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from random_script_player import Player
from random_scripts import ARGUMENTS, Program, calls, changes, programs

FIRST, LAST = (int(n) for n in os.environ.get("FASTJIT_SCRIPTS", "0:200").split(":"))
SCRIPTS, STEPS = 20, 14  # a test, a script


class Scripts(RuleBasedStateMachine):
    """A program is drawn, then its world is changed and the program called, in any order."""

    player: Player
    last_call = ""

    @initialize(program=programs())
    def begin(self, program: Program) -> None:
        self.player = Player(program)

    @rule(step=changes())
    def change(self, step: str) -> None:
        self.player.change(step)

    @rule(step=st.sampled_from(ARGUMENTS))
    def change_argument(self, step: str) -> None:
        self.player.change(step)

    @rule(step=calls())
    def call(self, step: str) -> None:
        self.last_call = step
        self.player.call(step)

    @precondition(lambda self: self.last_call)
    @rule()
    def call_again(self) -> None:
        self.player.call(self.last_call)

    @precondition(lambda self: self.last_call)
    @rule(step=changes())
    def change_and_call(self, step: str) -> None:
        self.player.change(step)
        self.player.call(self.last_call)
        self.player.call(self.last_call)


BLOCKS = range(FIRST // SCRIPTS, -(-LAST // SCRIPTS))
PLAYED: set[int] = set()


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.filterwarnings("ignore")
def test_random_scripts(block: int) -> None:
    before = Player.ran.copy()
    PLAYED.add(block)
    run_state_machine_as_test(
        seed(block)(Scripts),
        settings=settings(
            max_examples=SCRIPTS,
            stateful_step_count=STEPS,
            database=None,
            deadline=None,
            phases=(Phase.generate, Phase.shrink),
            suppress_health_check=list(HealthCheck),
            report_multiple_bugs=False,
        ),
    )
    ran = Player.ran - before
    assert ran["hit"] + ran["hit after a change"] > 0.1 * ran.total(), (ran, Player.reasons)


def test_what_ran() -> None:
    """Over the run: equality alone would pass a decorator that does nothing.

    What hypothesis draws depends on which modules of the project are imported (it takes constants from them), so the
    bounds lie well below the shares of 5,000 scripts.
    """
    if set(BLOCKS) != PLAYED:
        pytest.skip("not all of the scripts were played in this process")
    ran = Player.ran
    assert ran.total() > 4 * SCRIPTS * len(BLOCKS), ran
    assert ran["hit"] + ran["hit after a change"] > 0.5 * ran.total(), ran
    assert ran["hit after a change"] > 0.2 * ran.total(), ran
    assert ran["eager"] < 0.15 * ran.total(), (ran, Player.reasons)
