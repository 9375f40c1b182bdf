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

# Returns 'good' for a usable Python, a sentence for one that has no packages, else an empty text. The program has to be
# run: the Store has a stub with the same name.
function Get-Verdict([string] $program, [string[]] $options) {
    if (-not $program) { return '' }
    if ($null -eq (Get-Command -Name $program -CommandType Application -ErrorAction SilentlyContinue)) { return '' }
    $ErrorActionPreference = 'Continue' # 5.1 takes a line on a redirected stderr for an error
    try {
        $verdict = & $program @options -I $check 2>$null | Select-Object -Last 1
        if ($LASTEXITCODE -eq 0 -or $LASTEXITCODE -eq 2) { return $verdict }
        return ''
    }
    catch {
        return ''
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

$check = Join-Path -Path $launcher -ChildPath 'interpreter.py'
$skipped = ''
foreach ($candidate in @('py -3.13', 'py -3.12', 'py -3.11', 'py -3.14', 'python', 'python3', 'py -3', 'uv')) {
    $words = $candidate.Split(' ')
    $program = $words[0]
    $options = @($words | Select-Object -Skip 1)
    if ($candidate -eq 'uv') { $program = Get-UvPython }
    $verdict = Get-Verdict $program $options
    if ($verdict -eq 'good') {
        if ($skipped) { Write-Words "$skipped Using $candidate instead." }
        & $program @options -I $launcher @args
        exit $LASTEXITCODE
    }
    if ($verdict) { $skipped = $verdict }
}

if ($skipped) { Write-Words $skipped }
Write-Words 'Python 3.11 to 3.14 (64-bit) is required but was not found. Install it with:'
Write-Words '    winget install --exact --id Python.Python.3.13'
Write-Words 'or, with uv: uv python install 3.13'
Write-Words 'Then open a new window and repeat this command.'
exit 1
