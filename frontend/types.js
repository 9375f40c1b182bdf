// @ts-check
/**
 * Types of the service's responses, for the type checker only; the page never loads this file.
 *
 * @typedef {{type: string, title: string, status: number, detail: string, code: string, remedy: string}} Problem
 * @typedef {{operation: string, dtype: string, max_abs_error: number, tolerance: number, seconds: number,
 *   at: string, pid: number, versions?: Record<string, string>, evidence?: string|null, gflops?: number|null,
 *   checks?: {operation: string, dtype: string, max_abs_error?: number, tolerance?: number, skipped?: string,
 *   failed?: string}[]}} Proof
 * @typedef {{id: string, name: string, backend: string, kind: string, state: string, runtimes?: string[], layer?: string|null,
 *   note?: string|null, reason: string|null,
 *   remedy: string|null, hardware_id: string|null, aliases: string[], tasks: string[], proof: Proof|null,
 *   quarantined_models: string[], engines?: string[], stage?: string, memory_bytes?: number|null, memory_free_bytes?: number|null,
 *   speed?: Speed[]}} Device
 * @typedef {{model: string, engine: string, value: number, unit: string, at: string, low?: number|null, high?: number|null,
 *   streams?: number|null, together?: number|null}} Speed
 * @typedef {{id: string, name: string, vendor: string|null, kind: string, devices: string[], memory_bytes?: number|null,
 *   memory_shared_bytes?: number|null, driver?: string|null, driver_date?: string|null, pci_ids?: string|null,
 *   architecture?: string|null, cores?: number|null, threads?: number|null, reason?: string|null, remedy?: string|null,
 *   hidden_by?: string[]}} Hardware
 * @typedef {{name: string, hardware_id: string|null, bus: string, driver: string, runtimes: string, remedy: string}} MissingDevice
 * @typedef {{devices: Device[], hardware: Hardware[], missing?: MissingDevice[], default: string|null, default_reason: string|null,
 *   auto?: Record<string, {device: string|null, reason: string}>, probing: boolean, loaded?: Loaded[]}} DeviceList
 * @typedef {{device: string, model: string, engine: string, runtime: string, memory_bytes: number|null, jobs: number,
 *   pid: number|null, cpu_s: number|null}} Loaded
 * @typedef {{type?: string|string[], anyOf?: Schema[], enum?: unknown[], items?: Schema, uniqueItems?: boolean, properties?: Record<string, Schema>,
 *   maxLength?: number, minimum?: number, maximum?: number, exclusiveMinimum?: number, exclusiveMaximum?: number, default?: unknown,
 *   title?: string, description?: string}} Schema
 * @typedef {{id: string, name: string, task: string, engines?: string[], source?: string|null, bytes: number|null, licence: string|null, state: string,
 *   reason: string|null, remedy: string|null, default: boolean, options_schema: Schema,
 *   options_schemas?: Record<string, Schema>, tasks?: string[], details?: {inputs?: Slot[], sounds?: string[],
 *   non_commercial?: boolean|null, gated?: boolean, memory?: {setting: string, bytes: number}[],
 *   test_model?: boolean, good_at?: string, licence_terms?: string|null}, fits?: ModelFit[]}} Model
 * @typedef {Fit & {engine: string, engine_reason: string}} ModelFit
 * @typedef {{device: string, fits: "yes"|"partly"|"no"|null, reason: string}} Fit
 * @typedef {{model: string, name: string, state: string, bytes: number|null, download_s: number|null, licence: string|null,
 *   reason: string, offer: boolean}} Recommended
 * @typedef {{name: string, source: string, bytes: number|null, parts: number, quantization: string|null, fits: Fit[]}} FoundFile
 * @typedef {{source: string, name: string, author: string, downloads: number|null, likes: number|null, licence: string|null,
 *   updated_at: string|null, gated: boolean, page: string, reason: string|null, files: FoundFile[]}} Found
 * @typedef {{name: string, type: string|null, shape: (number|string|null)[]|null, kind: string}} Slot
 * @typedef {{name: string, state: string, title: string, version: string|null, previous: string|null, bytes: number|null,
 *   install_bytes: number|null, install_s: number|null, hardware: string[], devices: string[], licence: string|null, reason: string|null, remedy: string|null,
 *   note: string|null, job: string|null}} Runtime
 * @typedef {{phase: string, done: number, total: number|null, unit: string, eta_s: number|null}} Progress
 * @typedef {{device: string, runtime: string|null, engine: string|null, started_at: string, ended_at: string|null,
 *   error: string|null}} Attempt
 * @typedef {{on_device: number|null, evidence: string, parts: {where: string, share_of_nodes: number|null,
 *   share_of_time: number|null}[]}} Placement
 * @typedef {{asked: string, resolved: string|null, resolved_reason: string, used: string|null, fell_back: boolean|null,
 *   reason: string|null, engine: string|null, runtime: string|null, hardware_id: string|null, placement: Placement|null,
 *   attempts: Attempt[], memory: Record<string, number|null>, versions: Record<string, string>,
 *   times: Record<string, number|null>, counts: Record<string, number>, batched: boolean, threads: number|null,
 *   slots?: number|null, context_tokens?: number|null, fit?: {explanation: string, retried: string|null}|null,
 *   seed?: number|null, audio_s?: number|null, phases?: Record<string, number>, chosen?: Record<string, any>,
 *   model_file: string|null, chat_template: string|null, rate: {value: number, unit: string}|null,
 *   worker_pid: number|null, variations?: number[]|null, parts?: Receipt[]}} Receipt
 * @typedef {{language: string, sounds: string|null, sections: {kind: string, label: string, rhyme_scheme: string|null,
 *   lines: {text: string, syllables: number|null, rhyme: string|null}[]}[]}} Lyrics
 * @typedef {{id: string, task: string, model: string|null, status: string, created_at: string, started_at: string|null,
 *   ended_at: string|null, request: Record<string, any>, output: {text?: string|null, finish_reason?: string|null,
 *   artifacts?: Artifact[], result?: {words: string[]}|null, lyrics?: Lyrics|null},
 *   progress: Progress|null, error: Problem|null, receipt: Receipt|null}} Job
 * @typedef {{name: string, media_type: string, bytes: number, url: string}} Artifact
 * @typedef {{status: string, version: string, problems?: {subject: string, code: string, detail: string,
 *   remedy: string}[]}} Health
 * @typedef {{model: string, prompt: string, options: Record<string, string>}} TaskSettings
 * @typedef {TaskSettings & {task: string, device: string, fallback: string, kept: Record<string, TaskSettings>}} Settings
 */
export {};
