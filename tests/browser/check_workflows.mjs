// node check_workflows.mjs URL '{"vue": false, "files": [...], "run": [...]}' -> one JSON line per file on stdout
import { readFileSync } from 'node:fs'
import { loadWorkflow, missingNodes, nodeBoxes, openCanvas, openingZoom, promptWithViews, run, settledBoxes, videos } from './canvas.mjs'

const [url, request] = process.argv.slice(2)
const { vue, files, run: toRun = [] } = JSON.parse(request)
const canvas = await openCanvas(url, { vue, viewport: { width: 1440, height: 900 } })
try {
  for (const file of files) {
    canvas.errors.length = 0
    const saved = JSON.parse(readFileSync(file))
    await loadWorkflow(canvas.page, file, (saved.nodes ?? Object.keys(saved)).length) // the API form has nodes alone
    const report = { file, vue, missing: await missingNodes(canvas.page), prompt: await promptWithViews(canvas.page) }
    report.zoom = await openingZoom(canvas.page)
    report.boxes = await nodeBoxes(canvas.page)
    if (toRun.includes(file)) {
      report.end = await run(canvas.page)
      report.videos = await videos(canvas.page)
      report.after = await settledBoxes(canvas.page)
    }
    console.log(JSON.stringify({ ...report, errors: [...canvas.errors] }))
  }
} finally {
  await canvas.close()
}
