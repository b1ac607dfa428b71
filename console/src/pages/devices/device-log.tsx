import { Button, TextInput } from '@mantine/core';
import { useDebouncedValue } from '@mantine/hooks';
import { Trans, useLingui } from '@lingui/react/macro';
import { IconSearch } from '@tabler/icons-react';
import { useInfiniteQuery } from '@tanstack/react-query';
import { useRead, type Schemas } from '../../api/client';
import { objectPath, send, withQuery } from '../../api/objects';
import { formatNumber, formatTime } from '../../format';
import { DataTable, type Column } from '../../ui/data-table';
import { Panel } from '../../ui/page';
import { ShowCall } from '../../ui/show-call';
import { EmptyState } from '../../ui/states';
import { Ago } from '../../ui/time';
import { useUrlState } from '../../ui/url-state';

type DeviceEvent = Schemas['DeviceEvent'];
type Rejection = Schemas['RejectionInfo'];

const refreshMs = 5_000;
const pageSize = 100;

/** Events that the device reported, and what of its data was rejected. */
export function DeviceLog({ device }: { device: string }) {
  return (
    <div className="page">
      <Events device={device} />
      <Rejections device={device} />
    </div>
  );
}

function Events({ device }: { device: string }) {
  const { t } = useLingui();
  const [typed, setTyped] = useUrlState('event');
  const [event] = useDebouncedValue(typed.trim(), 300);
  const path = `${objectPath('/api/v1/devices', device)}/events`;
  const log = useInfiniteQuery({
    queryKey: ['devices', 'events', device, event],
    queryFn: ({ pageParam, signal }) =>
      send<Schemas['DeviceEvents']>('GET', withQuery(path, { event, before: pageParam, count: pageSize }), { signal }),
    initialPageParam: undefined as number | undefined,
    getNextPageParam: ({ events }) => (events.length < pageSize ? undefined : events[events.length - 1]?.number),
    refetchInterval: refreshMs,
  });
  const columns: Column<DeviceEvent>[] = [
    { id: 'time', header: t`Time`, sort: (row) => row.ts_ms, cell: (row) => formatTime(row.ts_ms) },
    {
      id: 'event',
      header: t`Event`,
      sort: (row) => row.event,
      cell: (row) => <span className="mono">{row.event}</span>,
    },
    { id: 'data', header: t`Data`, cell: (row) => <span className="mono">{JSON.stringify(row.data)}</span> },
    { id: 'number', header: t`Number`, align: 'right', cell: (row) => formatNumber(row.number ?? 0), isHidden: true },
  ];
  return (
    <DataTable
      name="device-events"
      label={t`Events`}
      columns={columns}
      rows={log.data?.pages.flatMap(({ events }) => events)}
      rowKey={(row) => String(row.number)}
      error={log.error}
      retry={() => void log.refetch()}
      hasMore={log.hasNextPage}
      isLoadingMore={log.isFetchingNextPage}
      loadMore={() => void log.fetchNextPage()}
      height={420}
      toolbar={
        <>
          <TextInput
            aria-label={t`Event`}
            placeholder={t`Event`}
            leftSection={<IconSearch size={14} />}
            w={200}
            value={typed}
            onChange={(change) => setTyped(change.currentTarget.value)}
          />
          <div className="table-actions">
            <ShowCall method="GET" path={path} ctl={`devices events ${device}`} />
          </div>
        </>
      }
      empty={
        event ? (
          <EmptyState
            title={<Trans>Nothing matches</Trans>}
            actions={
              <Button variant="default" onClick={() => setTyped('')}>
                <Trans>Show all</Trans>
              </Button>
            }
          />
        ) : (
          <EmptyState title={<Trans>No events yet</Trans>}>
            <Trans>Events that the device reports, such as faults, appear here.</Trans>
          </EmptyState>
        )
      }
    />
  );
}

function Rejections({ device }: { device: string }) {
  const { t } = useLingui();
  const path = `${objectPath('/api/v1/devices', device)}/telemetry/rejections`;
  const read = useRead(
    ['devices', 'rejections', device],
    (signal) => send<Schemas['DeviceRejectionList']>('GET', path, { signal }),
    { every: refreshMs },
  );
  const columns: Column<Rejection>[] = [
    {
      id: 'subject',
      header: t`Key`,
      sort: (row) => row.subject,
      cell: (row) => <span className="mono">{row.subject}</span>,
    },
    { id: 'reason', header: t`Reason`, cell: (row) => row.reason },
    {
      id: 'count',
      header: t`Times`,
      align: 'right',
      sort: (row) => row.count,
      cell: (row) => formatNumber(row.count),
    },
    { id: 'last', header: t`Last`, sort: (row) => row.last_at_ms, cell: (row) => <Ago ms={row.last_at_ms} /> },
  ];
  if (read.data?.rejections.length === 0) {
    return (
      <Panel title={<Trans>Rejected data</Trans>}>
        <span className="dimmed">
          <Trans>Nothing that the device sent was rejected since the node started.</Trans>
        </span>
      </Panel>
    );
  }
  return (
    <DataTable
      name="device-rejections"
      label={t`Rejected data`}
      columns={columns}
      rows={read.data?.rejections}
      rowKey={(row) => `${row.subject} ${row.reason}`}
      error={read.error}
      toolbar={
        <strong>
          <Trans>Rejected data</Trans>
        </strong>
      }
      height={320}
      empty={null}
    />
  );
}
