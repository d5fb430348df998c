"""The CLI of examples/claude_query.py: it says a few words, asks for a permission, and flushes.

It speaks as much of the Claude Code CLI's protocol as the example needs, over stdin and stdout, and
knows no account and no network.
"""

import json
import sys
import time


def say(**message: object) -> None:
    """Send a message to the SDK."""
    print(json.dumps(message), flush=True)


def answer(question: str) -> None:
    """Answer one question."""
    say(type="system", subtype="init", session_id="1", claude_code_version="9.9.9")
    for text in (f"You asked: {question}", "I shall think about it."):
        content = [{"type": "text", "text": text}]
        message = {"role": "assistant", "model": "none", "content": content}
        say(type="assistant", message=message, session_id="1", parent_tool_use_id=None)
    figures = {"duration_ms": 1, "duration_api_ms": 1, "num_turns": 1, "total_cost_usd": 0.0}
    say(type="result", subtype="success", is_error=False, session_id="1", result="42", **figures)


def main() -> None:
    """Answer until the input ends; then write the session, which takes a moment."""
    if sys.argv[-1] == "-v":
        print("9.9.9")
        return
    for line in sys.stdin:
        message = json.loads(line)
        if message["type"] == "control_request":
            response = {"subtype": "success", "request_id": message["request_id"], "response": {}}
            say(type="control_response", response=response)
        elif message["type"] == "user":
            answer(message["message"]["content"])
    time.sleep(0.2)
    print("the CLI has written its session", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
