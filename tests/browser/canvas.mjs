// ComfyUI's canvas in Chromium: open it, load workflows, look at what came of it, run, take pictures.
import { existsSync } from 'node:fs'
import { chromium } from 'playwright-core'

const BROWSERS = [process.env.CHROMIUM_PATH, '/usr/bin/chromium', '/usr/bin/chromium-browser', '/usr/bin/google-chrome']
const QUIET = [
  '--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking',
  '--disable-component-update', '--disable-sync', '--disable-dev-shm-usage',
]
// Said by ComfyUI's own front-end on an untouched server; none of it is about a workflow.
const HARMLESS = [/favicon/, /userdata\//, /user\.css/, /Failed to load resource.*(404|net::ERR_)/, /api\.comfy\.org/, /firebase/i,
  /missingModelMetadata/, /accessed before initialization/]

/** Milliseconds until something that is waited for counts as hung: two loaded cores take 30 s for a page or a run. */
export const PATIENCE = 240000

export function browserPath() {
  return BROWSERS.find((path) => path && existsSync(path))
}

export const launch = (...more) => chromium.launch({ executablePath: browserPath(), args: [...QUIET, ...more], timeout: PATIENCE })

const AGAIN = 'passes at a second try only, or not at all: ' // of tests/browser_runner.py

/**
 * A case with one more try, as a loaded machine loses an event once in some thousand; pytest warns of it. `tidy` ends what the
 * first try has begun.
 */
export const withSecondTry = (body, tidy) => (context) => body(context).catch(async (error) => {
  context.diagnostic(`${AGAIN}${context.name}: ${error.message}`)
  await tidy()
  await body(context)
})

/** Choose settings on the server at `url` before a page is opened; `vue` picks Nodes 2.0, else the classic renderer. */
export async function choose(url, vue, more = {}) {
  const settings = {
    'Comfy.TutorialCompleted': true,
    'Comfy.VueNodes.Enabled': vue,
    'Comfy.Workflow.ShowMissingModelsWarning': false,
    'Comfy.Workflow.Persist': false,
    'Comfy.Graph.CanvasInfo': false,
    'Comfy.Minimap.Visible': false,
    'LiteGraph.Canvas.MinFontSizeForLOD': 0,
    ...more,
  }
  const answer = await fetch(`${url}/api/settings`, { method: 'POST', body: JSON.stringify(settings) })
  if (!answer.ok) throw new Error(`settings: HTTP ${answer.status}`)
}

/** Wait until the page has the nodes of a pack, and on its canvas the workflow that it opens with. */
export const ready = (page, type = 'KSampler') => page.waitForFunction((id) => {
  const desk = window.app?.extensionManager
  return window.app?.graph && window.LiteGraph?.registered_node_types?.[id] && !desk?.spinner && desk?.workflow?.activeWorkflow
}, type)

/** Lets some frames pass: what an event has caused is drawn, however slow the machine is. */
export const settle = (page) => page.evaluate(async (frames) => {
  for (let i = 0; i < frames; i += 1) await new Promise(requestAnimationFrame)
}, 6)

/** Open the canvas of the server at `url` in a browser of its own; `script` runs in the page before all others. */
export async function openCanvas(url, { vue = false, viewport = { width: 1600, height: 900 }, scale = 1, settings, script } = {}) {
  await choose(url, vue, settings)
  const browser = await launch()
  const page = await browser.newPage({ viewport, deviceScaleFactor: scale })
  if (script) await page.addInitScript(script)
  page.setDefaultTimeout(PATIENCE)
  const errors = []
  page.on('pageerror', (error) => errors.push(`page: ${error.message}`))
  page.on('console', (message) => {
    const text = `${message.text()} ${message.location().url}`
    if (message.type() === 'error' && !HARMLESS.some((harmless) => harmless.test(text))) errors.push(text)
  })
  await page.goto(url)
  await ready(page)
  return { browser, page, errors, close: () => browser.close() }
}

/** Have an open page draw in Nodes 2.0 or in the classic renderer, as ComfyUI's menu does; to open another page takes seconds. */
export async function drawIn(page, vue) {
  await page.evaluate((on) => window.app.extensionManager.setting.set('Comfy.VueNodes.Enabled', on), vue)
  await settle(page)
}

/** Load a workflow file through the menu's own file input and wait until its nodes are on the canvas. */
export async function loadWorkflow(page, path, nodeCount) {
  await page.evaluate(() => { window.__before = window.app.graph.nodes[0] })
  await page.setInputFiles('#comfy-file-input', path)
  await page.waitForFunction((count) => {
    const { nodes } = window.app.graph
    return nodes.length === count && nodes[0] !== window.__before
  }, nodeCount)
  await settle(page)
}

/** Open a workflow as the template browser does, which fits the graph into the view; return the zoom. */
export async function openTemplate(page, graph, name) {
  await page.evaluate(([ui, title]) => window.app.loadGraphData(ui, true, true, title, { openSource: 'template' }), [graph, name])
  await settle(page)
  return page.evaluate(() => window.app.canvas.ds.scale)
}

/** Height of each note's text, and the note's height as the file has it, where Nodes 2.0 lays the notes out. */
export function noteHeights(page, graph) {
  const saved = graph.nodes.filter(({ type }) => type === 'MarkdownNote').map(({ id, size }) => [id, size[1]])
  return page.evaluate((notes) => notes.map(([id, height]) => [window.app.graph.getNodeById(id).size[1], height]), saved)
}

/** Boxes of the nodes when pictures and videos are there and nothing has grown for a while. */
export async function settledBoxes(page) {
  await page.waitForFunction(() => [...document.querySelectorAll('[data-node-id] img, [data-node-id] video')].every((shown) =>
    !shown.src || shown.complete || shown.readyState > 0))
  let boxes
  for (let same = 0, before = ''; same < 4; before = JSON.stringify(boxes)) {
    await settle(page)
    boxes = await nodeBoxes(page)
    same = JSON.stringify(boxes) === before ? same + 1 : 0
  }
  return boxes
}

/** Node types on the canvas that the server does not have. */
export function missingNodes(page) {
  return page.evaluate(() =>
    window.app.graph.nodes.map((node) => node.type).filter((type) => !window.LiteGraph.registered_node_types[type]))
}

/** The API form of what is on the canvas, as the front-end itself would queue it. */
export function apiPrompt(page) {
  return page.evaluate(async () => (await window.app.graphToPrompt()).output)
}

/** The same once core's 3D views are drawn; before, they send none. */
export async function promptWithViews(page) {
  const undrawn = (prompt) => Object.values(prompt).some(({ inputs }) => inputs.viewport_state === '')
  let prompt = await apiPrompt(page)
  for (let tries = 0; tries < 40 && undrawn(prompt); tries++) {
    await page.waitForTimeout(500)
    prompt = await apiPrompt(page)
  }
  return prompt
}

/** Press Run and wait for the prompt's end; returns what the API said. */
export async function run(page) {
  await page.evaluate(() => {
    window.__end = null
    const finish = (kind) => (event) => { window.__end = { kind, detail: event.detail } }
    for (const kind of ['execution_success', 'execution_error', 'execution_interrupted'])
      window.app.api.addEventListener(kind, finish(kind), { once: true })
  })
  await page.getByTestId('queue-button').click()
  await page.waitForFunction(() => window.__end)
  return page.evaluate(() => window.__end)
}

/** Queue the camera drawings alone, where the workflow has any, and wait until they are on their nodes. */
export function drawPreviews(page, timeout = 30000) {
  return page.evaluate(async (limit) => {
    const nodes = window.app.graph.nodes.filter((node) => node.type === 'LingBotWorldCameraPreview')
    if (!nodes.length) return
    const done = new Promise((resolve) => {
      for (const kind of ['execution_success', 'execution_error'])
        window.app.api.addEventListener(kind, resolve, { once: true })
      setTimeout(resolve, limit)
    })
    await window.app.queuePrompt(0, 1, nodes.map((node) => String(node.id)))
    await done
  }, timeout)
}

/** Addresses of the videos that nodes have made and the page shows, each with the size the browser decoded. */
export async function videos(page) {
  const made = () => [...document.querySelectorAll('video')].filter((video) => /type=output/.test(video.currentSrc || video.src))
  await page.waitForFunction(`(${made})().some((video) => video.videoWidth > 0)`, null, { timeout: 120000 }).catch(() => {})
  return page.evaluate(`(${made})().map((video) => ({ src: video.currentSrc || video.src, width: video.videoWidth,
    height: video.videoHeight, seconds: video.duration }))`)
}

/** Zoom so that all nodes and groups fill the view, with `margin` of it left free. */
export async function fitView(page, margin = 0.04) {
  await page.evaluate((free) => {
    const { graph, canvas } = window.app
    const boxes = [...graph.nodes.map((node) => node.getBounding()), ...graph.groups.map((group) => group._bounding)]
    const left = Math.min(...boxes.map((b) => b[0])), top = Math.min(...boxes.map((b) => b[1]))
    const right = Math.max(...boxes.map((b) => b[0] + b[2])), bottom = Math.max(...boxes.map((b) => b[1] + b[3]))
    const view = canvas.canvas.getBoundingClientRect()
    const scale = Math.min(view.width / (right - left), view.height / (bottom - top)) * (1 - 2 * free)
    canvas.ds.scale = scale
    canvas.ds.offset[0] = view.width / scale / 2 - (left + right) / 2
    canvas.ds.offset[1] = view.height / scale / 2 - (top + bottom) / 2
    canvas.setDirty(true, true)
  }, margin)
  await page.waitForTimeout(600)
}

/** Boxes of the nodes, titles included, in the graph's pixels: what Nodes 2.0 has laid out, else what the canvas draws. */
export function nodeBoxes(page) {
  return page.evaluate(() => window.app.graph.nodes.map((node) => {
    const element = document.querySelector(`[data-node-id="${node.id}"]`)
    const [x, y, width, height] = node.getBounding()
    const drawn = element && !node.flags.collapsed ? [element.offsetWidth, element.offsetHeight] : [width, height]
    return { title: `${node.id} ${node.title}`, box: [x, y, ...drawn] }
  }))
}

/** Hide everything but the canvas, its nodes and their widgets, so that a picture shows the graph alone. */
export function hideMenus(page) {
  return page.addStyleTag({
    content: `body * { visibility: hidden } #graph-canvas, #graph-canvas-container, .dom-widget, .dom-widget *,
      [data-node-id], [data-node-id] *, .p-popover { visibility: visible }`,
  })
}
