"""The mutants of the third edition: each rule that the second edition's mutants break, in new code.

Each module here has the mutants of some files below ``tests/edition``, and in ``VOID`` the names of
second-edition mutants whose rule is gone, with the reason. A mutant keeps the name of its rule.
"""

from __future__ import annotations

from typing import Final

from tests.simulation.mutants import Mutant

from . import changes, looks, outcomes, plans, programs, upkeep

_MODULES: Final = (changes, looks, plans, outcomes, programs, upkeep)

MUTANTS: Final[tuple[Mutant, ...]] = tuple(one for module in _MODULES for one in module.MUTANTS)

#: Name of a rule of the second edition -> why nothing can break it any more.
VOID: Final[dict[str, str]] = {name: why for one in _MODULES for name, why in one.VOID.items()}

#: Files of the second edition that stay as they are, with their mutants.
KEPT: Final = (
    *("entries/decide.py", "entries/definition.py", "entries/backfill.py", "entries/save.py"),
    *("entry.py", "schedules/next_run.py", "calendar/walltime.py"),
    *("beat/amqp_pipe.py", "beat/redis_pipe.py", "beat/publisher.py", "beat/broker.py"),
    *("beat/lock.py", "beat/wakeup.py", "lua/acquire.lua", "lua/extend.lua", "lua/release.lua"),
)
