"""The version of this package, which is that of the gdn_server it was released with."""

__version__ = "0.1.0"
