"""The program behind launch_wsl.sh and launch.ps1: environments, default model, start, update. Standard library."""
