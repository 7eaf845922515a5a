// A JavaScript interpreter that keeps what was defined from one cell to the next.
//
// Lines of JSON come in by descriptor 3 and go out by descriptor 4:
//
//   in   {"run": code, "mark": text}                   run a cell; afterwards `mark` is written to stdout and stderr
//        {"answer": id, "value": …} or {"answer": id, "error": {code, message}}
//   out  {"ready": version}                            once
//        {"call": id, "tool": name, "arguments": {…}}  a cell wants another tool
//        {"image": base64, "mime": type}               a cell shows an image
//        {"done": mark, "value": text?, "error": {summary, text}?}

import { writeSync } from "node:fs";
import { createRequire } from "node:module";
import { Socket } from "node:net";
import { homedir, tmpdir } from "node:os";
import process from "node:process";
import { setImmediate } from "node:timers";
import { inspect } from "node:util";

import { Cell, LINE_END, connect, post } from "./cells.mjs";

// Names that a cell declares would hide the global ones from us, too.
const { Buffer, Error, JSON, Map, Math, Object, Promise, RegExp, String, SyntaxError, TypeError } = globalThis;

const MAX_SHOWN = 100_000;
const MAX_LATE = 10;
const IMAGES = ["image/png", "image/jpeg", "image/gif", "image/webp"];
const SHOWN = { depth: 4, maxArrayLength: 100, maxStringLength: 20_000, breakLength: 100 };
const FOREIGN = /\(?(?:node:(?:internal|inspector|diagnostics_channel)\b|data:text\/javascript)/;
const here = import.meta.url;
const cwd = process.cwd();
const { parse, stringify } = JSON;
const { exit } = process;
const { write: streamWrite } = process.stdout;

const waiting = new Map();
const late = [];
let calls = 0;
let answerLast;
let isBusy = false;
let show;

function send(message) {
  const data = Buffer.from(`${stringify(message)}\n`);
  for (let done = 0; done < data.length; ) {
    try {
      done += writeSync(4, data, done);
    } catch (error) {
      if (error.code !== "EAGAIN") throw error;
    }
  }
}

class ToolError extends Error {
  get name() {
    return "ToolError";
  }

  // It is made when the tool is called, which is what its stack is to tell, and says later what went wrong.
  say({ code, message, result }) {
    const frames = this.stack.split("\n").slice(1);
    this.message = message;
    this.stack = [`ToolError: ${message}`, ...frames].join("\n");
    this.code = code;
    Object.defineProperty(this, "result", { value: result });
    return this;
  }
}

function tool(name, args = {}) {
  const failure = new ToolError();
  Error.captureStackTrace(failure, tool);
  return new Promise((resolve, reject) => {
    if (!isBusy) throw new Error("tool() works only while a cell runs");
    if (typeof name !== "string") throw new TypeError("tool() takes the name of a tool and its arguments");
    const id = ++calls;
    send({ call: id, tool: name, arguments: typeof args === "string" ? { input: args } : args });
    waiting.set(id, { resolve, reject: (error) => reject(failure.say(error)) });
  });
}

function answered({ answer, value, error }) {
  const call = waiting.get(answer);
  waiting.delete(answer);
  if (error) call?.reject(error);
  else call?.resolve(value);
  if (!waiting.size) answerLast?.();
}

function emitImage(image) {
  if (!isBusy) throw new Error("emitImage() works only while a cell runs");
  const url = typeof image === "string" ? /^data:([^;,]+);base64,(.*)$/s.exec(image) : null;
  const [mime, data] = url
    ? [url[1], url[2]]
    : [image?.mimeType ?? "image/png", Buffer.from(image?.bytes ?? "").toString("base64")];
  if (!IMAGES.includes(mime) || !data) {
    throw new TypeError("emitImage() takes a data URL, or {bytes, mimeType}, of a PNG, JPEG, GIF or WebP image");
  }
  send({ image: data, mime });
}

function shown(value) {
  try {
    const text = inspect(value, SHOWN);
    return text.length > MAX_SHOWN ? `${text.slice(0, MAX_SHOWN)}… ${text.length - MAX_SHOWN} more characters` : text;
  } catch (error) {
    return `[a value that cannot be shown: ${error?.message}]`;
  }
}

// Without the frames of this file and of Node's insides; with the columns of the text as it was sent.
function cleaned(text, cell) {
  const kept = [];
  for (const line of text.split("\n")) {
    const isOurs = /^\s*at /.test(line) && (line.includes(here) || FOREIGN.test(line));
    if (!isOurs) kept.push(line);
    else if (line.endsWith(" {")) kept.push(`${kept.pop()} {`); // what else the error has follows
  }
  const left = kept.join("\n");
  if (!cell) return left;
  return left.replaceAll(new RegExp(`(?<=\\b${cell.name}:1:)\\d+`, "g"), (column) => {
    return String(Math.max(1, column - cell.prefix.length));
  });
}

function failed(error, details, cell) {
  if (error instanceof SyntaxError && !cell.hasBegun) return misread(error, details, cell);
  const text = cleaned(shown(error), cell);
  const summary = error instanceof Error ? `${error.name}: ${error.message}` : `Uncaught ${text}`;
  return { summary, text: error instanceof Error ? text : `Uncaught ${text}` };
}

const HINTS = {
  "Unexpected token 'export'": "A cell is no module: leave `export` out; what is declared stays for later cells.",
  "Cannot use 'import.meta' outside a module": "A cell is no module and has no `import.meta`; use process.cwd().",
  "Illegal return statement": "A cell is no function: leave `return` out; the value of the last expression is shown.",
};

function misread(error, details, cell) {
  const lines = cell.text.split(LINE_END);
  const line = Math.min(details.lineNumber, lines.length - 1);
  const moved = line === 0 ? cell.prefix.length : 0;
  const column = Math.min(Math.max(0, details.columnNumber - moved), lines[line].length);
  const place = lines[line].length <= 200 ? `${lines[line]}\n${" ".repeat(column)}^\n` : "";
  const summary = `SyntaxError: ${error.message}`;
  const hint = HINTS[error.message];
  return {
    summary: hint ? `${summary}. ${hint}` : summary,
    text: `${cell.name}:${line + 1}\n${place}${summary}${hint ? `\n${hint}` : ""}`,
  };
}

// A value as V8 lends it becomes the value itself only in a call that it is an argument of.
async function seen(remote, work) {
  const { objectId, value, unserializableValue } = remote ?? {};
  const argument = objectId ? { objectId } : unserializableValue ? { unserializableValue } : { value };
  let found;
  show.work = (real) => (found = work(real));
  await post("Runtime.callFunctionOn", {
    objectId: show.id,
    functionDeclaration: "function (value) { this(value) }",
    arguments: [argument],
    silent: true,
  });
  return found;
}

async function run({ run: text, mark }) {
  isBusy = true;
  tellLate();
  const cell = new Cell(text);
  const { result, exceptionDetails: details } = await cell.run();
  await settled();
  const done = { done: mark };
  if (details) done.error = await seen(details.exception, (error) => failed(error, details, cell));
  else if (result.type !== "undefined") done.value = await seen(result, (value) => cleaned(shown(value), cell));
  await post("Runtime.releaseObjectGroup", { objectGroup: "cell" });
  isBusy = false;
  await Promise.all([write(process.stdout, 1, mark), write(process.stderr, 2, mark)]);
  send(done);
}

// A cell is not over before the tools it called are, and before who waits for those was told.
async function settled() {
  while (waiting.size) {
    await new Promise((resolve) => (answerLast = resolve));
    await new Promise((resolve) => setImmediate(resolve));
  }
}

function write(stream, fd, text) {
  if (stream.writable) return new Promise((resolve) => streamWrite.call(stream, text, () => resolve()));
  try {
    writeSync(fd, text);
  } catch {
    // it was closed by a cell, and nobody can be told
  }
  return undefined;
}

function lost(error, origin) {
  const text = `[${origin}] ${cleaned(shown(error))}\n`;
  if (isBusy) process.stderr.write(text);
  else if (late.length < MAX_LATE) late.push(text);
}

function tellLate() {
  for (const text of late.splice(0)) process.stderr.write(text);
}

async function open() {
  await connect();
  show = { work: null, id: null };
  const codex = { tool, emitImage, cwd, homeDir: homedir(), tmpDir: tmpdir() };
  const names = { tool, codex, require: createRequire(`${cwd}/`), $show: (value) => show.work(value) };
  for (const [name, value] of Object.entries(names)) {
    Object.defineProperty(globalThis, name, { value, configurable: true, writable: true });
  }
  show.id = (await post("Runtime.evaluate", { expression: "$show" })).result.objectId;
  delete globalThis.$show;
}

for (const stream of [process.stdout, process.stderr]) stream._handle?.setBlocking?.(true);
process.on("uncaughtException", (error) => lost(error, "uncaught exception"));
process.on("unhandledRejection", (error) => lost(error, "unhandled rejection"));
await open();
let rest = "";
const channel = new Socket({ fd: 3, readable: true, writable: false });
channel.setEncoding("utf8");
channel.on("close", () => exit.call(process, 0));
channel.on("data", (data) => {
  const lines = (rest + data).split("\n");
  rest = lines.pop();
  for (const line of lines) {
    const message = parse(line);
    if ("run" in message) setImmediate(() => run(message));
    else answered(message);
  }
});
send({ ready: process.version });
