"""How hard a model is tried: little if samples are, more in a full run, and as hard as somebody wants."""

from __future__ import annotations

import os

from hypothesis import Phase, settings

from tests import sampling


def effort(examples: int, steps: int) -> settings:
    """Return the settings of a model.

    Args:
        examples: how many courses of events, if the run is not sampled; `QUIESCE_MODEL_EXAMPLES` says
            otherwise.
        steps: of each. A failure is made short if `QUIESCE_MODEL_SHRINK` is set: that takes long.
    """
    phases = [Phase.explicit, Phase.reuse, Phase.generate]
    if "QUIESCE_MODEL_SHRINK" in os.environ:
        phases.append(Phase.shrink)
    return settings(
        max_examples=int(
            os.environ.get("QUIESCE_MODEL_EXAMPLES", str(sampling.fewer(examples, 12)))
        ),
        stateful_step_count=steps,
        deadline=None,
        print_blob=True,
        phases=phases,
    )
