#Requires -Version 5.1
# Starts Touchstone on Windows; see `.\launch.ps1 --help`. If the execution policy forbids scripts, start launch.cmd, which
# bypasses it for this script only. Finds a Python and runs backend\cli\launcher with it.
# Written for Windows PowerShell 5.1 and PowerShell 7.
Set-StrictMode -Version 2.0
$ErrorActionPreference = 'Stop'
# PowerShell 7.4 would turn every exit code but 0 into an exception; here exit codes are passed on.
$PSNativeCommandUseErrorActionPreference = $false

function Write-Words([string] $text) { [Console]::Error.WriteLine("touchstone: $text") }

# Returns the folder of the script itself, also if it is started through a symbolic link.
function Get-OwnFolder {
    $file = Get-Item -LiteralPath $PSCommandPath
    if ($file.LinkType -ne 'SymbolicLink') { return $PSScriptRoot }
    $target = @($file.Target)[0]
    if (-not [System.IO.Path]::IsPathRooted($target)) { $target = Join-Path -Path $PSScriptRoot -ChildPath $target }
    return Split-Path -Path $target -Parent
}

# Returns whether the program is a usable Python. It has to be run: the Store has a stub with the same name.
function Test-Python([string] $program, [string[]] $options) {
    if ($null -eq (Get-Command -Name $program -CommandType Application -ErrorAction SilentlyContinue)) { return $false }
    $check = 'import sys, venv, ensurepip, ssl, sqlite3, ctypes; sys.exit(sys.version_info < (3, 11) or sys.maxsize < 2**32)'
    $ErrorActionPreference = 'Continue' # 5.1 takes a line on a redirected stderr for an error
    try {
        & $program @options -I -c $check 2>$null | Out-Null
        return $LASTEXITCODE -eq 0
    }
    catch {
        return $false
    }
}

# Returns the path of a Python that uv manages.
function Get-UvPython {
    if ($null -eq (Get-Command -Name 'uv' -CommandType Application -ErrorAction SilentlyContinue)) { return $null }
    $ErrorActionPreference = 'Continue'
    try {
        return & uv python find --no-project '>=3.11,<3.15' 2>$null | Select-Object -First 1
    }
    catch {
        return $null
    }
}

$root = Get-OwnFolder
$launcher = Join-Path -Path (Join-Path -Path $root -ChildPath 'backend\cli') -ChildPath 'launcher'
if (-not (Test-Path -LiteralPath $launcher)) {
    Write-Words "$root has no backend\cli\launcher: run the script in a complete copy of the repository."
    exit 1
}

foreach ($candidate in @('py -3.13', 'py -3.12', 'py -3.11', 'python', 'python3', 'py -3')) {
    $words = $candidate.Split(' ')
    $program = $words[0]
    $options = @($words | Select-Object -Skip 1)
    if (Test-Python $program $options) {
        & $program @options -I $launcher @args
        exit $LASTEXITCODE
    }
}
$python = Get-UvPython
if ($python -and (Test-Python $python @())) {
    & $python -I $launcher @args
    exit $LASTEXITCODE
}

Write-Words 'Python 3.11 or newer (64-bit) is required but was not found. Install it with:'
Write-Words '    winget install --exact --id Python.Python.3.13'
Write-Words 'Then open a new window and repeat this command.'
exit 1
