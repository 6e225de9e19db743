"""All attacks, in one list."""

from tests.environments.code.sandbox.attacks.decoding import DECODING
from tests.environments.code.sandbox.attacks.files import FILES
from tests.environments.code.sandbox.attacks.forging import AFTERWARDS, FORGING, UNSCORED
from tests.environments.code.sandbox.attacks.imports import IMPORTS
from tests.environments.code.sandbox.attacks.memory import MEMORY
from tests.environments.code.sandbox.attacks.network import NETWORK
from tests.environments.code.sandbox.attacks.processes import PROCESSES, SIGNALS
from tests.environments.code.sandbox.attacks.resources import RESOURCES, TIME

EVERY = (
    *MEMORY,
    *FILES,
    *NETWORK,
    *PROCESSES,
    *SIGNALS,
    *RESOURCES,
    *TIME,
    *FORGING,
    *UNSCORED,
    *AFTERWARDS,
    *DECODING,
    *IMPORTS,
)
