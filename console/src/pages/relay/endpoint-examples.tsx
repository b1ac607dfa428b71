import { Tabs, Text } from '@mantine/core';
import { Trans } from '@lingui/react/macro';
import { CopyText } from '../../ui/copy';
import { Panel } from '../../ui/page';
import { Loading } from '../../ui/states';
import type { RelayEndpoint } from './endpoint-address';

/** Programs that connect to this endpoint, ready to run. */
export function EndpointExamples({ endpoint, address }: { endpoint: RelayEndpoint; address: string | undefined }) {
  if (address === undefined) return <Loading />;
  const url = new URL(address || 'ws://127.0.0.1:8083/ws/');
  const full = endpoint.has_access_key ? `${url.href}?key=KEY` : url.href;
  const port = url.port || (url.protocol === 'wss:' ? '443' : '80');
  const path = `${url.pathname}${endpoint.has_access_key ? '?key=KEY' : ''}`;
  const examples: [string, string, string][] = [
    [
      'browser',
      'Browser',
      `const socket = new WebSocket("${full}");
socket.onopen = () => socket.send("hello from a page");
socket.onmessage = (event) => console.log(event.data);`,
    ],
    [
      'python',
      'Python',
      `# pip install websockets
import asyncio, websockets

async def main():
    async with websockets.connect("${full}") as socket:
        await socket.send("hello from Python")
        async for message in socket:
            print(message)

asyncio.run(main())`,
    ],
    [
      'device',
      'Python, device',
      `# pip install websockets
# A device: reports values, and answers commands.
import asyncio, json, websockets

async def main():
    async with websockets.connect("${full}") as socket:
        await socket.send(json.dumps({"type": "identify", "deviceId": "pump-1", "deviceName": "Pump"}))
        await socket.send(json.dumps({"type": "data", "data": {"temperature": 21.5}}))
        async for text in socket:
            message = json.loads(text)
            if message.get("type") == "control":
                print("command", message["command"], message["params"])
                await socket.send(json.dumps(
                    {"type": "control_ack", "commandId": message["commandId"], "status": "success"}))

asyncio.run(main())`,
    ],
    [
      'node',
      'Node',
      `// npm install ws
import WebSocket from "ws";

const socket = new WebSocket("${full}");
socket.on("open", () => socket.send("hello from Node"));
socket.on("message", (data, isBinary) => console.log(isBinary ? data : data.toString()));`,
    ],
    [
      'esp32',
      'ESP32',
      `// Arduino library "WebSockets" of Markus Sattler
#include <WiFi.h>
#include <WebSocketsClient.h>

WebSocketsClient socket;

void onEvent(WStype_t type, uint8_t *payload, size_t length) {
  if (type == WStype_CONNECTED)
    socket.sendTXT("{\\"type\\":\\"identify\\",\\"deviceId\\":\\"esp-1\\"}");
  if (type == WStype_TEXT) Serial.printf("%s\\n", payload);
}

void setup() {
  Serial.begin(115200);
  WiFi.begin("network", "password");
  while (WiFi.status() != WL_CONNECTED) delay(100);
  socket.begin${url.protocol === 'wss:' ? 'SSL' : ''}("${url.hostname}", ${port}, "${path}");
  socket.onEvent(onEvent);
  socket.setReconnectInterval(2000);
}

void loop() { socket.loop(); }`,
    ],
    [
      'http',
      'HTTP',
      `# Sends a message to all connections; no WebSocket needed.
curl -u ID:SECRET -H 'Content-Type: application/json' ${location.origin}/api/v1/publish \\
  -d '{"topic": "$relay/${endpoint.id}", "payload": "hello from curl"}'`,
    ],
  ];
  return (
    <Panel>
      {endpoint.has_access_key && (
        <Text size="sm" c="dimmed" mb="sm">
          <Trans>Replace KEY by the access key of the endpoint.</Trans>
        </Text>
      )}
      <Tabs defaultValue="browser" keepMounted={false}>
        <Tabs.List>
          {examples.map(([id, name]) => (
            <Tabs.Tab key={id} value={id}>
              {name}
            </Tabs.Tab>
          ))}
        </Tabs.List>
        {examples.map(([id, , text]) => (
          <Tabs.Panel key={id} value={id} pt="md">
            <CopyText text={text} />
          </Tabs.Panel>
        ))}
      </Tabs>
    </Panel>
  );
}
