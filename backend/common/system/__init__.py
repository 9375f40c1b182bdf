"""Facts about the operating system: resources, cgroups, libraries, power, suspend."""
