"""Kernel formats: what each is, how it is checked and how it is loaded on a device."""
