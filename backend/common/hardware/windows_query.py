"""The PowerShell query of Windows' adapters, processor and system, with JSON output.

Sources: Plug and Play for names, addresses, drivers and each adapter's LUID (property 2 of {60b193cb-…},
DEVPKEY_Gpu_Luid); the registry for memory, because Win32_VideoController's AdapterRAM is limited to 4 GB. Statements
contain no double quotes, so that all of them can be one argument, also from inside WSL.
"""

from __future__ import annotations

LIMIT_S = 25.0

_STATEMENTS = (
    "$ErrorActionPreference = 'SilentlyContinue'",
    "$ProgressPreference = 'SilentlyContinue'",
    "[Console]::OutputEncoding = [Text.Encoding]::UTF8",
    "$keys = 'DEVPKEY_Device_BusNumber', 'DEVPKEY_Device_Address', 'DEVPKEY_Device_DriverVersion', "
    "'DEVPKEY_Device_DriverDate', 'DEVPKEY_Device_Driver', '{60b193cb-5276-4d0f-96fc-f173abad3ec6} 2'",
    "$wanted = 'PNPClass = ''Display'' OR PNPClass = ''ComputeAccelerator'' OR ConfigManagerErrorCode = 28'",
    "$entities = Get-CimInstance Win32_PnPEntity -Filter $wanted",
    "$classes = 'HKLM:\\SYSTEM\\CurrentControlSet\\Control\\Class\\'",
    "$devices = @(foreach ($e in $entities) { $p = @{}; "
    "Get-PnpDeviceProperty -InstanceId $e.PNPDeviceID -KeyName $keys | ForEach-Object { "
    "if ($_.Data -is [datetime]) { $p[$_.KeyName] = $_.Data.ToString('yyyy-MM-dd') } "
    "elseif ($null -ne $_.Data) { $p[$_.KeyName] = [string]$_.Data } }; "
    "$k = Get-ItemProperty ($classes + $p['DEVPKEY_Device_Driver']); "
    "[pscustomobject]@{ name = $e.Name; instance = $e.PNPDeviceID; class = $e.PNPClass; maker = $e.Manufacturer; "
    "service = $e.Service; error = $e.ConfigManagerErrorCode; compatible = @($e.CompatibleID); properties = $p; "
    "memory = $k.'HardwareInformation.qwMemorySize' } })",
    "$directx = @(Get-ChildItem 'HKLM:\\SOFTWARE\\Microsoft\\DirectX' | "
    "ForEach-Object { Get-ItemProperty $_.PSPath } | Where-Object { $null -ne $_.AdapterLuid } | "
    "Select-Object 'Description', 'AdapterLuid', 'DedicatedVideoMemory', 'SharedSystemMemory')",
    "$cpu = Get-CimInstance Win32_Processor | "
    "Select-Object -First 1 'Name', 'Manufacturer', 'NumberOfCores', 'NumberOfLogicalProcessors'",
    "$os = Get-CimInstance Win32_OperatingSystem | Select-Object 'Caption', 'Version'",
    "$vc = Get-ChildItem 'HKLM:\\SOFTWARE\\Microsoft\\VisualStudio\\14.0\\VC\\Runtimes' | ForEach-Object { "
    "(Get-ItemProperty $_.PSPath).Version } | Select-Object -First 1",
    "$fs = Get-ItemProperty 'HKLM:\\SYSTEM\\CurrentControlSet\\Control\\FileSystem'",
    "[pscustomobject]@{ devices = $devices; directx = $directx; processor = $cpu; system = $os; vc_runtime = $vc; "
    "long_paths = $fs.LongPathsEnabled; hip_path = $env:HIP_PATH } | ConvertTo-Json -Depth 5 -Compress",
)


def command(powershell: str) -> tuple[str, ...]:
    """Return the command line of the query."""
    return (powershell, "-NoProfile", "-NonInteractive", "-Command", "; ".join(_STATEMENTS))
