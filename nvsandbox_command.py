# SPDX-License-Identifier: Apache-2.0
"""Where the command ``nvsandbox`` begins: before it is imported, so that Ctrl-C ends that silently too.

A module of its own beside the package, for to import anything of the package is to import the package first.
"""

# What `signal` is made from: that takes a millisecond to import, in which Ctrl-C would not be silent.
import _signal
import sys


def main() -> None:
    """Runs the command. Ctrl-C ends it as it ends other programs: by the signal, without a word.

    Python raises KeyboardInterrupt for SIGINT at whatever place it is, in the midst of an import too, where it becomes
    other errors or is only printed. So as long as there is nothing to tidy up the signal has its usual effect.
    """
    # Where it is ignored, as in the background of a script, that is to stay so.
    if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)
    # The command opens the sandboxes that it is asked for, whatever a parent's install() left to its children.
    if "nvsandbox_children" in sys.modules:
        sys.modules["nvsandbox_children"].stay()
    from nvsandbox.cli import interrupts, program

    try:
        program.main(prog_name="nvsandbox")
    except interrupts.BySignal as end:
        end.die()
        raise


if __name__ == "__main__":
    main()
