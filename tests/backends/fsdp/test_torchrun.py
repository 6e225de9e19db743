"""What torchrun asks of a process is answered once the process can say which rank died."""

import signal

from steadyrl.backends.fsdp.torchrun import Noted


def test_a_signal_is_noted_although_another_answer_was_set_and_given_that_answer_at_the_end():
    heard = []
    before, of_interrupts = signal.getsignal(signal.SIGHUP), signal.getsignal(signal.SIGINT)
    noted = Noted()
    noted.listen()
    signal.signal(signal.SIGHUP, lambda number, frame: heard.append(number))  # as the command line does
    noted.listen()
    try:
        with noted:
            signal.raise_signal(signal.SIGHUP)
            assert noted.received == [signal.SIGHUP]
            assert heard == []
        assert heard == [signal.SIGHUP]
    finally:
        signal.signal(signal.SIGHUP, before)
    assert signal.getsignal(signal.SIGINT) == of_interrupts
