"""Wall clocks that are wrong on purpose, and may be set while a program runs.

Owns the library that shifts a clock and the file that says by how much. Knows nothing of what runs with it.
"""

import pathlib
import shutil
import struct
import subprocess

SKEWED_CLOCK = pathlib.Path(__file__).with_name("skewed_clock.c")


class Clock:
    """The wall clock of every program that has `variables` in its environment; those are empty where no C compiler is."""

    def __init__(self, place, name="clock"):
        self.file, self.variables = place / name, {}
        self.set(0)
        library = place / "skewed_clock.so"
        if not library.exists():
            if shutil.which("cc") is None:
                return
            subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, SKEWED_CLOCK], check=True, capture_output=True)
        self.variables = {"LD_PRELOAD": str(library), "SKEWED_CLOCK": str(self.file)}

    def set(self, seconds):
        """It is ahead by so much from now on."""
        # In place, as it is mapped.
        with open(self.file, "r+b" if self.file.exists() else "wb") as file:
            file.write(struct.pack("l", seconds))
