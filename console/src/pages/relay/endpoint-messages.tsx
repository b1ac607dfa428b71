import { Switch, TextInput } from '@mantine/core';
import { Trans, useLingui } from '@lingui/react/macro';
import { IconSearch } from '@tabler/icons-react';
import { useState } from 'react';
import { useRead, type Schemas } from '../../api/client';
import { objectPath, send } from '../../api/objects';
import { formatBytes, formatTime } from '../../format';
import { Copy } from '../../ui/copy';
import { Panel } from '../../ui/page';
import { EmptyState, ErrorState, Loading } from '../../ui/states';
import { useUrlState } from '../../ui/url-state';
import { endpointsPath } from './endpoint-address';

/** With its node in a cluster. */
type Entry = Schemas['HistoryEntry'] & { node?: string };

const refreshMs = 1_500;

/** Text as it is, JSON with indentation. */
export function pretty(text: string): string {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

/** What the endpoint keeps in memory, the newest first. */
export function EndpointMessages({ id }: { id: string }) {
  const { t } = useLingui();
  const [search, setSearch] = useUrlState('q');
  const [isLive, setLive] = useState(true);
  const path = `${objectPath(endpointsPath, id)}/messages`;
  const list = useRead([path], (signal) => send<Entry[]>('GET', path, { signal }), {
    ...(isLive ? { every: refreshMs } : {}),
  });
  const shown = (list.data ?? []).filter(
    (entry) => search === '' || `${entry.sender} ${'text' in entry ? entry.text : ''}`.includes(search),
  );
  return (
    <Panel
      title={<Trans>Last messages</Trans>}
      actions={
        <>
          <TextInput
            aria-label={t`Search`}
            placeholder={t`Search`}
            leftSection={<IconSearch size={14} />}
            w={170}
            value={search}
            onChange={(event) => setSearch(event.currentTarget.value)}
          />
          <Switch label={t`Live`} checked={isLive} onChange={(event) => setLive(event.currentTarget.checked)} />
        </>
      }
    >
      {list.error && !list.data ? (
        <ErrorState error={list.error} retry={() => void list.refetch()} />
      ) : list.data === undefined ? (
        <Loading />
      ) : shown.length === 0 ? (
        <EmptyState title={search ? <Trans>Nothing matches</Trans> : <Trans>No messages yet</Trans>}>
          <Trans>The endpoint keeps the last messages in memory; they are shown here as they arrive.</Trans>
        </EmptyState>
      ) : (
        <ol className="message-list">
          {shown.map((entry, index) => (
            <li key={`${entry.at_ms} ${shown.length - index}`}>
              <div className="message-head">
                <strong>{entry.sender}</strong>
                {entry.node !== undefined && <span className="dimmed">{entry.node}</span>}
                <time className="dimmed">{formatTime(entry.at_ms)}</time>
                {'text' in entry && <Copy value={entry.text} />}
              </div>
              {'text' in entry ? (
                <pre className="json">{pretty(entry.text)}</pre>
              ) : (
                <span className="dimmed">
                  <Trans>binary, {formatBytes(entry.binary_bytes)}</Trans>
                </span>
              )}
            </li>
          ))}
        </ol>
      )}
    </Panel>
  );
}
