import { Button, Group, Menu, PasswordInput, Stack, Text, Textarea } from '@mantine/core';
import { Trans, useLingui } from '@lingui/react/macro';
import { IconPlugConnected, IconPlugConnectedX, IconSend, IconTemplate, IconTrash } from '@tabler/icons-react';
import { useEffect, useRef, useState } from 'react';
import { formatBytes, formatNumber, formatTime } from '../../format';
import { Panel } from '../../ui/page';
import { StateBadge } from '../../ui/state-badge';
import { EmptyState } from '../../ui/states';
import type { RelayEndpoint } from './endpoint-address';
import { pretty } from './endpoint-messages';

interface Line {
  number: number;
  atMs: number;
  kind: 'in' | 'out' | 'event';
  text: string;
}

const maxLines = 300;

type State = 'closed' | 'connecting' | 'open';

/** A WebSocket connection to the endpoint from this page. */
export function EndpointTest({ endpoint, address }: { endpoint: RelayEndpoint; address: string | undefined }) {
  const { t } = useLingui();
  const [state, setState] = useState<State>('closed');
  const [key, setKey] = useState('');
  const [text, setText] = useState('{"temperature": 21.5}');
  const [lines, setLines] = useState<Line[]>([]);
  const [counts, setCounts] = useState({ sent: 0, received: 0 });
  const socket = useRef<WebSocket | null>(null);
  const number = useRef(0);

  useEffect(() => () => socket.current?.close(), []);

  const log = (kind: Line['kind'], content: string) => {
    number.current += 1;
    const line = { number: number.current, atMs: Date.now(), kind, text: content };
    setLines((previous) => [line, ...previous].slice(0, maxLines));
  };
  const connect = () => {
    if (!address) return;
    setState('connecting');
    // A key in a sub-protocol appears in no log of a proxy.
    const next = key ? new WebSocket(address, ['tidegate-relay', `key.${key}`]) : new WebSocket(address);
    next.onopen = () => {
      setState('open');
      log('event', t`connected`);
    };
    next.onmessage = ({ data }: MessageEvent<string | Blob>) => {
      log('in', typeof data === 'string' ? data : t`binary, ${formatBytes(data.size)}`);
      setCounts((previous) => ({ ...previous, received: previous.received + 1 }));
    };
    next.onclose = ({ code, reason }) => {
      if (socket.current === next) {
        socket.current = null;
        setState('closed');
      }
      log('event', code === 1006 ? t`the connection could not be made, or was lost` : t`closed: ${code} ${reason}`);
    };
    socket.current = next;
  };
  const transmit = () => {
    if (state !== 'open' || text === '') return;
    socket.current?.send(text);
    log('out', text);
    setCounts((previous) => ({ ...previous, sent: previous.sent + 1 }));
  };
  const templates: [string, string][] = [
    [t`A text`, 'hello'],
    [t`Become a device`, '{"type": "identify", "deviceId": "test-1", "deviceName": "Test"}'],
    [t`Report values as a device`, '{"type": "data", "data": {"temperature": 21.5, "humidity": 48}}'],
    [t`Answer the last command`, '{"type": "control_ack", "status": "success"}'],
    [t`Ask for the own state`, '{"type": "request", "requestId": "r1", "requestType": "status_sync", "params": {}}'],
  ];
  return (
    <div className="grid">
      <Panel
        title={<Trans>Send</Trans>}
        actions={
          <StateBadge health={state === 'open' ? 'good' : 'unknown'}>
            {state === 'open' ? (
              <Trans>connected</Trans>
            ) : state === 'connecting' ? (
              <Trans>connecting</Trans>
            ) : (
              <Trans>not connected</Trans>
            )}
          </StateBadge>
        }
      >
        <Stack gap="sm">
          <Text size="sm" c="dimmed">
            <Trans>This page connects like any other client; open it twice to see messages pass.</Trans>
          </Text>
          {endpoint.has_access_key && (
            <PasswordInput
              label={t`Access key`}
              autoComplete="off"
              value={key}
              disabled={state !== 'closed'}
              onChange={(event) => setKey(event.currentTarget.value)}
            />
          )}
          <Group gap="xs">
            {state === 'closed' ? (
              <Button leftSection={<IconPlugConnected size={14} />} disabled={!address} onClick={connect}>
                <Trans>Connect</Trans>
              </Button>
            ) : (
              <Button
                variant="default"
                leftSection={<IconPlugConnectedX size={14} />}
                onClick={() => socket.current?.close(1000)}
              >
                <Trans>Disconnect</Trans>
              </Button>
            )}
            <Menu position="bottom-start">
              <Menu.Target>
                <Button variant="default" leftSection={<IconTemplate size={14} />}>
                  <Trans>Examples</Trans>
                </Button>
              </Menu.Target>
              <Menu.Dropdown>
                {templates.map(([name, content]) => (
                  <Menu.Item key={name} onClick={() => setText(content)}>
                    {name}
                  </Menu.Item>
                ))}
              </Menu.Dropdown>
            </Menu>
          </Group>
          <Textarea
            label={t`Message`}
            description={t`Ctrl-Enter sends.`}
            autosize
            minRows={4}
            maxRows={14}
            classNames={{ input: 'mono' }}
            spellCheck={false}
            value={text}
            onChange={(event) => setText(event.currentTarget.value)}
            onKeyDown={(event) => {
              if (event.key === 'Enter' && (event.ctrlKey || event.metaKey)) transmit();
            }}
          />
          <Group justify="space-between">
            <Text size="xs" c="dimmed">
              <Trans>
                {formatNumber(counts.sent)} sent, {formatNumber(counts.received)} received
              </Trans>
            </Text>
            <Button leftSection={<IconSend size={14} />} disabled={state !== 'open' || text === ''} onClick={transmit}>
              <Trans>Send</Trans>
            </Button>
          </Group>
        </Stack>
      </Panel>
      <Panel
        title={<Trans>Messages of this connection</Trans>}
        actions={
          <Button
            variant="subtle"
            color="gray"
            leftSection={<IconTrash size={14} />}
            disabled={lines.length === 0}
            onClick={() => setLines([])}
          >
            <Trans>Clear</Trans>
          </Button>
        }
      >
        {lines.length === 0 ? (
          <EmptyState title={<Trans>Nothing yet</Trans>}>
            <Trans>Connect and send a message.</Trans>
          </EmptyState>
        ) : (
          <ol className="message-list" aria-live="polite">
            {lines.map((line) => (
              <li key={line.number}>
                <div className="message-head">
                  <span className={`message-kind message-${line.kind}`}>
                    {line.kind === 'in' ? (
                      <Trans>received</Trans>
                    ) : line.kind === 'out' ? (
                      <Trans>sent</Trans>
                    ) : (
                      <Trans>connection</Trans>
                    )}
                  </span>
                  <time className="dimmed">{formatTime(line.atMs)}</time>
                </div>
                {line.kind === 'event' ? (
                  <span className="dimmed">{line.text}</span>
                ) : (
                  <pre className="json">{pretty(line.text)}</pre>
                )}
              </li>
            ))}
          </ol>
        )}
      </Panel>
    </div>
  );
}
