"""Passes over programs at HAL level, and from there to the virtual machine."""
