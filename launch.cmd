@echo off
rem Starts launch.ps1 where scripts are not allowed to run, or where it came in a zip file that was downloaded: the
rem policy is lifted for this one process, and no setting of the system is changed. Arguments and exit code pass through.
powershell.exe -NoLogo -NoProfile -ExecutionPolicy Bypass -File "%~dp0launch.ps1" %*
exit /b %ERRORLEVEL%
