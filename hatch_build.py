"""Compiles the native convolutions into a wheel or an editable install when that is possible, and never fails when it is not."""

from __future__ import annotations

import importlib.util
import os
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

NATIVE = Path("fedcodist", "native")


class NativeHook(BuildHookInterface):
    """Without a compiler, XLA's headers or an x86-64 processor the wheel is pure Python: the portable form of everything works alone."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel" or os.environ.get("FEDCODIST_NATIVE") == "0":
            return
        try:
            # By its path: in a build environment neither the package nor what it needs can be imported.
            spec = importlib.util.spec_from_file_location("native_build", Path(self.root) / NATIVE / "build.py")
            assert spec and spec.loader
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            why = module.build()
        except Exception as error:  # whatever it is: an install without kernels is better than none
            why = f"{type(error).__name__}: {error}"
        if why:
            later = "after the install, `python -m fedcodist.native build` tries again"
            self.app.display_warning(f"fedcodist: native convolutions not compiled ({why}); {later}")
            return
        build_data["artifacts"].append(f"/{NATIVE.as_posix()}/{module.LIBRARY}")
        build_data["pure_python"] = False
        # It has XLA's interface and none of Python's: every Python of this platform can load it.
        build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"
