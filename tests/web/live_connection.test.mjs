import assert from "node:assert/strict";
import { afterEach, beforeEach, mock, test } from "node:test";
import { Connection, GIVEN_UP, textCodec } from "../../web/live/connection.mjs";

let sockets, told;

/** A websocket that does what the test says. */
class Socket {
  static OPEN = 1;
  constructor() { Object.assign(this, { readyState: 0, sent: [], code: null }); sockets.push(this); }
  send(text) { this.sent.push(JSON.parse(text)); }
  close(code) { this.code = code; this.readyState = 2; } // a silent network answers no close
  open() { this.readyState = 1; this.onopen?.(); }
  says(message) { this.onmessage?.({ data: JSON.stringify({ type: "status", ...message }) }); }
  breaks(code) { this.readyState = 3; this.onclose?.({ code }); }
}

beforeEach(() => {
  mock.timers.enable({ apis: ["setTimeout"] });
  globalThis.WebSocket = Socket;
  sockets = [];
  told = [];
});
afterEach(() => mock.timers.reset());

const seconds = (count) => mock.timers.tick(1000 * count);

function connected() {
  const connection = new Connection({}, new URL("http://here/walk"), textCodec(), {
    frames: () => {}, status: ({ content }) => told.push(content), failed: (reason) => told.push(reason),
    closed: (reason) => told.push(`closed: ${reason}`),
  });
  sockets[0].open();
  return connection;
}

function walking() {
  const connection = connected();
  sockets[0].says({ content: "started", resume: "token" });
  return connection;
}

/** The connection that takes the place of a lost one begins to walk. */
function again() {
  seconds(0.3);
  sockets.at(-1).open();
  sockets.at(-1).says({ content: "started", resume: "token" });
}

test("nothing for five seconds is the end of a connection, and the walk is taken up by another", () => {
  walking();
  seconds(4.9);
  sockets[0].says({ content: "figures" });
  seconds(4.9);
  assert.equal(sockets[0].code, null);
  seconds(0.2);
  assert.equal(sockets[0].code, 4000);
  again();
  assert.equal(sockets.length, 2);
  assert.equal(sockets[1].sent[0].resume, "token");
  assert.deepEqual(told, ["started", "figures", "lost", "started"]);
  sockets[0].says({ content: "figures" });
  assert.equal(told.length, 4, "the old connection is heard");
});

test("a way on which messages take longer is given more time, until it is steady", () => {
  walking();
  seconds(5);
  again();
  seconds(9.9);
  assert.equal(sockets.length, 2);
  sockets[1].says({ content: "figures" });
  seconds(10);
  again();
  assert.equal(sockets.length, 3);
  for (let figures = 0; figures < 60; figures++) sockets[2].says({ content: "figures" });
  seconds(5);
  assert.equal(sockets[2].code, 4000);
});

test("another try follows where an open network does not let the next connection open", () => {
  walking();
  seconds(5);
  seconds(0.3);
  seconds(5);
  assert.equal(sockets[1].code, 4000);
  seconds(0.7);
  assert.equal(sockets.length, 3);
});

test("who waits in line, or for a walk to begin, is told nothing and waits", () => {
  const connection = connected();
  sockets[0].says({ content: "waiting", place: 1 });
  seconds(500);
  sockets[0].says({ content: "started", resume: "token" });
  connection.send("restart", {});
  seconds(20);
  sockets[0].says({ content: "restarted" });
  assert.equal(sockets[0].code, null);
  seconds(5);
  assert.equal(sockets[0].code, 4000);
});

test("a connection that breaks is taken up again ten times, and one that is closed is over", () => {
  walking();
  for (let tries = 0; tries < 11; tries++) { sockets.at(-1).breaks(1006); seconds(10); }
  assert.equal(sockets.length, 11);
  assert.match(told.at(-1), /^closed: The server cannot be reached/);
  sockets = [];
  walking();
  sockets[0].breaks(1000);
  assert.match(told.at(-1), /^closed: The server has closed/);
  seconds(100);
  assert.equal(sockets.length, 1);
});

test("after close nothing is watched and nothing opened", () => {
  walking().close();
  seconds(100);
  assert.equal(sockets.length, 1);
  assert.equal(sockets[0].code, 1000);
});

test("a view that is gone gives its connection up, and the server keeps the walk", () => {
  walking().close(GIVEN_UP);
  seconds(100);
  assert.equal(sockets.length, 1);
  assert.equal(sockets[0].code, 4000);
});

test("nothing is sent before the walk begins, nor while its connection is lost", () => {
  const connection = connected();
  sockets[0].says({ content: "waiting", place: 1 });
  assert.equal(connection.send("camera_actions"), 0);
  assert.equal(connection.send("pause"), 0);
  sockets[0].says({ content: "started", resume: "token" });
  assert.equal(connection.send("pause"), 1);
  seconds(5);
  assert.equal(connection.send("prompt"), 0);
  seconds(0.3);
  sockets[1].open();
  assert.equal(connection.send("prompt"), 0);
  sockets[1].says({ content: "started", resume: "token" });
  assert.equal(connection.send("prompt"), 2);
  assert.deepEqual(sockets.map(({ sent }) => sent.map(({ kind, type }) => kind ?? type)), [["init", "pause"], ["init", "prompt"]]);
});

test("a walk that is over when it is to be taken up is over for good", () => {
  walking();
  sockets[0].breaks(1006);
  seconds(0.3);
  sockets[1].open();
  sockets[1].says({ type: "error", content: "the walk is over: nobody came back within 60 s" });
  sockets[1].breaks(1006);
  seconds(100);
  assert.equal(sockets.length, 2);
  assert.equal(sockets[1].code, 1000);
  assert.deepEqual(told, ["started", "lost", "closed: the walk is over: nobody came back within 60 s"]);
});
