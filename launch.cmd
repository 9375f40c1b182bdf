@echo off
rem Starts launch.ps1 even if the execution policy forbids scripts, or if it came in a downloaded zip file: the policy is
rem bypassed for this process only, and no system setting changes. Arguments and exit code are passed through.
powershell.exe -NoLogo -NoProfile -ExecutionPolicy Bypass -File "%~dp0launch.ps1" %*
exit /b %ERRORLEVEL%
