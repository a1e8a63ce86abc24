"""An MCP server over stdio that does what it is told, good and bad. Standard library only, so that it
starts in a few milliseconds; it handles one message at a time, so that a tool that blocks blocks all."""

import json
import os
import subprocess
import sys
import time

OUT = sys.stdout.buffer
ANY = {"type": "object"}
OPEN = {"readOnlyHint": True}
CANCELLED = []
NAMES = """echo fail wait hang ignore die garbage bad_utf8 big overlong structured picture pid child deaf
broken half grow silent_env say ledger hold told steps patient cancelled"""
TOOLS = [{"name": n, "description": n, "inputSchema": ANY, "annotations": OPEN} for n in NAMES.split()]
TOOLS.append({"name": "drop", "inputSchema": ANY, "destructiveHint": True})
TOOLS.append({"name": "peek", "inputSchema": ANY, "readOnlyHint": True})
TOOLS.append({"name": "plain", "inputSchema": ANY})


def write(message):
    OUT.write(json.dumps(message).encode() + b"\n")
    OUT.flush()


def progress(meta, done, total, message):
    if "progressToken" in meta:
        params = {
            "progressToken": meta["progressToken"],
            "progress": done,
            "total": total,
            "message": message,
        }
        write({"jsonrpc": "2.0", "method": "notifications/progress", "params": params})


def text(value):
    return {"content": [{"type": "text", "text": value}]}


def run(name, args, meta):
    """The result of a tool; None: there will be no answer."""
    match name:
        case "told":
            return text(json.dumps(meta))
        case "echo":
            return text(args["text"])
        case "fail":
            return {**text("it went wrong"), "isError": True}
        case "wait":
            start = time.monotonic()
            time.sleep(args["s"])
            return text(json.dumps([start, time.monotonic()]))
        case "steps":
            for done in range(1, args["n"] + 1):
                progress(meta, done, args["n"], f"step {done}")
                if "heard" in args:
                    heard = os.path.join(args["heard"], str(done))  # noqa: PTH118
                    while not os.path.exists(heard):  # noqa: PTH110
                        time.sleep(0.01)
                else:
                    time.sleep(args["s"])
            return text("walked")
        case "patient":
            progress(meta, 0, 1, "begun")
            return None  # and goes on reading
        case "cancelled":
            return text(str(len(CANCELLED)))
        case "hang":
            time.sleep(3600)
        case "ignore":
            return None
        case "die":
            sys.stderr.write("last words\n")
            sys.stderr.flush()
            os._exit(3)
        case "garbage":
            OUT.write(b'not json\n{"json": "but no message"}\n17\n\xff\xfe\x00\n' + b"x\n" * 500)
            return text("still here")
        case "bad_utf8":
            message = {"jsonrpc": "2.0", "id": args["_id"], "result": text("caf@")}
            OUT.write(json.dumps(message).encode().replace(b"@", b"\xe9") + b"\n")
            OUT.flush()
            return None
        case "big":
            return text("x" * args["n"])
        case "overlong":
            OUT.write(b"y" * args["n"])
            OUT.flush()
            return None
        case "structured":
            return {"content": [], "structuredContent": {"a": [1, 2]}}
        case "picture":
            return {"content": [{"type": "image", "data": "AAAA", "mimeType": "image/png"}]}
        case "pid":
            return text(json.dumps([os.getpid(), os.getppid()]))
        case "child":
            child = subprocess.Popen(["sleep", "600"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
            return text(str(child.pid))
        case "deaf":
            os.close(0)
            time.sleep(3600)
        case "half":
            return {**text("half \ud83d, whole \U0001f600"), "structuredContent": {"a": "\udfff"}}
        case "broken":
            return {"content": "no list"}
        case "grow":
            if args["name"] not in {tool["name"] for tool in TOOLS}:
                TOOLS.append({"name": args["name"], "inputSchema": ANY, "annotations": OPEN})
            write({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})
            return text("grown")
        case "silent_env":
            return text(json.dumps(dict(os.environ)))
        case "ledger":
            with open(args["file"], "a") as ledger:  # noqa: PTH123 - pathlib starts slowly
                ledger.write(f"{args['n']}\n")
            time.sleep(args["s"])
            return text("written")
        case "hold":
            held = os.path.join(args["folder"], str(args["n"]))  # noqa: PTH118 - pathlib starts slowly
            with open(f"{held}.new", "x") as begun:  # noqa: PTH123
                begun.write(str(os.getpid()))
            os.rename(begun.name, held)  # noqa: PTH104
            while os.path.exists(held):  # noqa: PTH110 - whoever takes the file away lets the call go on
                time.sleep(0.01)
            return text(str(os.getpid()))
        case "say":
            sys.stderr.write(args["text"] + "\n")
            sys.stderr.flush()
            return text("said")
    raise LookupError(name)


def answer(method, params, request):
    match method:
        case "initialize":
            tools = {"tools": {"listChanged": True}}
            info = {"name": "hostile", "version": "1"}
            return {"protocolVersion": params["protocolVersion"], "capabilities": tools, "serverInfo": info}
        case "ping":
            return {}
        case "tools/list":
            page = 7
            start = int(params.get("cursor") or 0)
            following = {"nextCursor": str(start + page)} if start + page < len(TOOLS) else {}
            return {"tools": TOOLS[start : start + page], **following}
        case "tools/call":
            if params["name"] not in {tool["name"] for tool in TOOLS}:
                raise LookupError(params["name"])
            arguments = {**params.get("arguments", {}), "_id": request}
            return run(params["name"], arguments, params.get("_meta", {}))
    raise LookupError(method)


def main():
    for argument in sys.argv[1:]:
        if argument == "exit":
            sys.exit("no, thank you")
        if argument == "mute":
            time.sleep(3600)
        if argument.startswith("tool="):
            TOOLS.append({"name": argument[5:], "inputSchema": ANY, "annotations": OPEN})
        if argument.startswith("meta="):  # meta=TOOL={…}
            name, _, meta = argument[5:].partition("=")
            next(tool for tool in TOOLS if tool["name"] == name)["_meta"] = json.loads(meta)
    for line in sys.stdin:
        message = json.loads(line)
        if message.get("method") == "notifications/cancelled":
            CANCELLED.append(message["params"]["requestId"])
        if "id" not in message or "method" not in message:
            continue
        reply = {"jsonrpc": "2.0", "id": message["id"]}
        try:
            result = answer(message["method"], message.get("params", {}), message["id"])
        except LookupError as error:
            write({**reply, "error": {"code": -32601, "message": f"unknown: {error}"}})
            continue
        if result is not None:
            write({**reply, "result": result})


main()
