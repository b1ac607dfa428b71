import { Button, Popover, Stack, Text } from '@mantine/core';
import { Trans } from '@lingui/react/macro';
import { IconTerminal2 } from '@tabler/icons-react';
import { CopyText } from './copy';
import { quoted } from './quoted';

export { quoted };

export interface Call {
  method: 'GET' | 'POST' | 'PUT' | 'DELETE';
  path: string;
  body?: unknown;
  /** The same with `tidegate ctl`, without the name of the program. */
  ctl?: string;
}

export function curlCommand({ method, path, body }: Call): string {
  const parts = ['curl -u ID:SECRET'];
  if (method !== 'GET') parts.push(`-X ${method}`);
  if (body !== undefined) parts.push(`-H 'Content-Type: application/json' -d ${quoted(JSON.stringify(body))}`);
  parts.push(quoted(`${location.origin}${path}`));
  return parts.join(' ');
}

/** The command line that does the same as an action of the page: a call of the API, or another command. */
export function ShowCall(call: Call | { command: string }) {
  return (
    <Popover position="bottom-end" withArrow shadow="md" trapFocus>
      <Popover.Target>
        <Button variant="subtle" color="gray" leftSection={<IconTerminal2 size={14} />}>
          <Trans>Show the call</Trans>
        </Button>
      </Popover.Target>
      <Popover.Dropdown className="show-call">
        <Stack gap="xs">
          {'command' in call ? (
            <CopyText text={call.command} />
          ) : (
            <>
              {call.ctl && <CopyText text={`tidegate ctl ${call.ctl}`} />}
              <CopyText text={curlCommand(call)} />
              <Text size="xs" c="dimmed">
                <Trans>
                  Use the id and secret of an API key; on the node's own machine, tidegate ctl needs neither.
                </Trans>
              </Text>
            </>
          )}
        </Stack>
      </Popover.Dropdown>
    </Popover>
  );
}

/** Fields of an object as `tidegate ctl` takes them: `name=value`, other values than texts as JSON. */
export function ctlFields(body: Record<string, unknown>): string {
  return Object.entries(body)
    .filter(([, value]) => value !== undefined)
    .map(([name, value]) => quoted(`${name}=${typeof value === 'string' ? value : JSON.stringify(value)}`))
    .join(' ');
}
