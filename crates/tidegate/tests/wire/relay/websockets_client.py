"""A client of a relay endpoint with the package `websockets`, which does the same as ws_client.mjs."""

import asyncio
import sys

import websockets


async def main():
    async with websockets.connect(sys.argv[1]) as socket:
        await socket.send("hello")
        async for message in socket:
            if isinstance(message, bytes):
                await socket.send(message[::-1])
                break
            await socket.send(f"text {message}")
        extensions = [extension.name for extension in socket.protocol.extensions]
    print("closed", socket.close_code, *extensions)


asyncio.run(main())
