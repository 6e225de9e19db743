"""All attacks, in one list."""

from tests.sandbox.attacks.decoding import DECODING
from tests.sandbox.attacks.files import FILES
from tests.sandbox.attacks.forging import AFTERWARDS, FORGING, UNSCORED
from tests.sandbox.attacks.imports import IMPORTS
from tests.sandbox.attacks.memory import MEMORY
from tests.sandbox.attacks.network import NETWORK
from tests.sandbox.attacks.processes import PROCESSES, SIGNALS
from tests.sandbox.attacks.resources import RESOURCES, TIME

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
