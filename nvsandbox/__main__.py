# SPDX-License-Identifier: Apache-2.0
"""``python -m nvsandbox`` is the command ``nvsandbox``."""

from nvsandbox_command import main

if __name__ == "__main__":
    main()
