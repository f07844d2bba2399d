"""What training frameworks do by default."""

from paraplan.question.frameworks.catalogue import framework_names, load_framework
from paraplan.question.frameworks.spec import FrameworkSpec

__all__ = ["FrameworkSpec", "framework_names", "load_framework"]
