// node check_blueprints.mjs URL '[{"vue": false, "blueprints": {"title": {"widget": value}}, "path": "..."}, ...]' -> a JSON line
// for each blueprint, of one renderer after the other
import { apiPrompt, drawIn, openCanvas, run, settle, videos } from './canvas.mjs'

const [url, request] = process.argv.slice(2)
const wishes = JSON.parse(request)

/** Choose a blueprint in the node library, as people do, and put it on the empty canvas of a new workflow: on one that was
 * cleared, nodes of the same number have the values of those before. */
async function addFromLibrary(page, title) {
  await page.evaluate(() => window.app.extensionManager.command.execute('Comfy.NewBlankWorkflow'))
  await page.waitForFunction(() => !window.app.graph.nodes.length)
  await page.mouse.click(700, 700)
  await page.keyboard.press('n')
  const entry = page.getByText(title).first()
  await page.locator('input[type=text]:visible').first().fill('LingBot')
  await entry.click()
  await settle(page)
  await page.mouse.move(690, 200)
  await settle(page)
  await page.mouse.click(700, 200)
  await page.waitForFunction(() => window.app.graph.nodes.some((node) => !node.flags.ghost))
  await page.keyboard.press('n')
}

/** Give the node what it needs: a start image, a path where it takes one, a place for the video, and these values. */
const complete = (page, values, flight) => page.evaluate(([wished, editor]) => {
  const { app, LiteGraph } = window
  const [whole] = app.graph.nodes
  whole.pos = [500, 100]
  const add = (type, pos) => {
    const node = LiteGraph.createNode(type)
    node.pos = pos
    app.graph.add(node)
    return node
  }
  const slot = (name) => whole.inputs.findIndex((input) => input.name === name)
  const image = add('LoadImage', [50, 100])
  image.widgets.find((widget) => widget.name === 'image').value = 'example.png'
  image.connect(0, whole, slot('start image'))
  if (slot('camera') >= 0) {
    const drawn = add('LingBotWorldCameraEditor', [50, 500])
    drawn.widgets.find((widget) => widget.name === 'path').value = editor
    drawn.connect(0, whole, slot('camera'))
  }
  for (const [name, value] of Object.entries(wished)) {
    const widget = whole.widgets.find((one) => one.name === name)
    widget.value = value
    widget.callback?.(value)
  }
  whole.connect(0, add('SaveVideo', [1000, 100]), 0)
}, [values, flight])

const { page, errors, close } = await openCanvas(url, { vue: wishes[0].vue, viewport: { width: 1440, height: 900 } })
page.on('console', (message) => { if (/proxyWidgetMigration/.test(message.text())) errors.push(message.text()) })

async function check({ vue, blueprints, path }) {
  await drawIn(page, vue)
  for (const [title, values] of Object.entries(blueprints)) {
    errors.length = 0
    await addFromLibrary(page, title)
    const fresh = await apiPrompt(page)
    await complete(page, values, path)
    const report = { title, vue, fresh, prompt: await apiPrompt(page), end: await run(page), videos: await videos(page) }
    console.log(JSON.stringify({ ...report, errors }))
  }
}

try {
  for (const wish of wishes) await check(wish)
} finally {
  await close()
}
