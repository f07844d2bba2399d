"""What training frameworks do by default."""

from paraplan.frameworks.catalogue import framework_names, load_framework
from paraplan.frameworks.spec import FrameworkSpec

__all__ = ["FrameworkSpec", "framework_names", "load_framework"]
