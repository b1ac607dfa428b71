import { Stack, Text } from '@mantine/core';
import { Trans } from '@lingui/react/macro';
import type { ReactNode } from 'react';
import { Panel } from '../../ui/page';
import type { RelayEndpoint } from './endpoint-address';

type Row = [code: string, text: ReactNode];

/** What clients and devices send and receive, for those who write one. */
export function EndpointProtocol({ endpoint }: { endpoint: RelayEndpoint }) {
  const modes: Row[] = [
    ['direct', <Trans>a text or bytes, as they were sent</Trans>],
    ['json', <Trans>a text as an object with type, data and timestamp; bytes as they were sent</Trans>],
    ['custom_header', <Trans>the header, directly followed by the message</Trans>],
  ];
  const sent: Row[] = [
    [
      '{"type":"identify","deviceId":"pump-1","deviceName":"Pump"}',
      <Trans>The connection is this device from now on. The answer is identified.</Trans>,
    ],
    [
      '{"type":"data","data":{"temperature":21.5},"timestamp":1760000000000}',
      <Trans>Values, which are stored and relayed. Without a timestamp, the time of arrival applies.</Trans>,
    ],
    ['{"temperature":21.5}', <Trans>The same, in short: every object without type.</Trans>],
    [
      '{"type":"control_ack","commandId":"7","status":"success"}',
      <Trans>The result of a command: success or failed. Only status is required.</Trans>,
    ],
    [
      '{"type":"request","requestId":"r1","requestType":"status_sync","params":{}}',
      <Trans>
        Asks the node for values: config_query for shared attributes, status_sync for the latest values, data_sync for
        stored values of a key.
      </Trans>,
    ],
  ];
  const received: Row[] = [
    ['{"type":"control","commandId":"7","command":"start","params":{}}', <Trans>A command, to the device only.</Trans>],
    [
      '{"type":"response","requestId":"r1","status":"success","data":{}}',
      <Trans>The answer to a request, or an error with code and message.</Trans>,
    ],
    ['{"type":"alert"}', <Trans>An alarm, to all connections of the endpoint.</Trans>],
    [
      '{"type":"system","level":"error","code":"INVALID_ACCESS_KEY"}',
      <Trans>
        Why the node closes the connection, such as INVALID_ACCESS_KEY, ORIGIN_NOT_ALLOWED, TOO_MANY_CONNECTIONS or
        ENDPOINT_DISABLED; or RATE_LIMIT_WARNING after messages were lost.
      </Trans>,
    ],
  ];
  return (
    <Stack gap="md">
      <Panel title={<Trans>What receivers get</Trans>}>
        <Text size="sm" mb="xs">
          <Trans>A message goes to all other connections of the endpoint. Its mode is {endpoint.mode ?? 'json'}.</Trans>
        </Text>
        <MessageTable rows={modes} />
      </Panel>
      <Panel title={<Trans>Messages of devices to the node</Trans>}>
        <MessageTable rows={sent} />
      </Panel>
      <Panel title={<Trans>Messages of the node</Trans>}>
        <MessageTable rows={received} />
      </Panel>
      <Panel title={<Trans>MQTT, rules and HTTP</Trans>}>
        <Text size="sm">
          <Trans>
            The endpoint is the MQTT topic <code>$relay/{endpoint.id}</code>: rules select it, and MQTT clients with a
            permission and POST /api/v1/publish send to it.
          </Trans>
        </Text>
      </Panel>
    </Stack>
  );
}

function MessageTable({ rows }: { rows: Row[] }) {
  return (
    <dl className="protocol">
      {rows.map(([code, text]) => (
        <div key={code}>
          <dt>
            <code>{code}</code>
          </dt>
          <dd>{text}</dd>
        </div>
      ))}
    </dl>
  );
}
