import { Button, Text } from '@mantine/core';
import { Trans, useLingui } from '@lingui/react/macro';
import { IconSettings, IconTrash } from '@tabler/icons-react';
import { useEffect, useState } from 'react';
import { Link, useLocation, useParams } from 'wouter';
import { api, queryClient, unwrap, useRead, type Schemas } from '../../api/client';
import { openStream } from '../../api/stream';
import { formatNumber, formatTick } from '../../format';
import { Chart } from '../../ui/chart';
import { ConfirmDeletion } from '../../ui/confirm-deletion';
import { Copy } from '../../ui/copy';
import { ObjectEditor } from '../../ui/object-editor';
import { Facts, Page, Panel } from '../../ui/page';
import { PageTabs } from '../../ui/page-tabs';
import { PendingPage } from '../../ui/pending-page';
import { ShowCall } from '../../ui/show-call';
import { SpanSelect, useSpan } from '../../ui/span-select';
import { EmptyState, Loading } from '../../ui/states';
import { Ago } from '../../ui/time';
import { AlarmList } from '../alarms/alarm-list';
import { FileList } from '../files/file-list';
import { useMayChangeProduct } from '../products/products';
import { DeviceAttributes } from './attributes';
import { DeviceChildren } from './children';
import { DeviceCommands } from './commands';
import { ClaimButton } from './claim-device';
import { CredentialsButton } from './device-credentials';
import { DeviceFirmware } from './device-firmware';
import { useDeviceKind } from './device-kind';
import { DeviceLog } from './device-log';
import { DeviceStateBadge } from './device-state';

/** Keys of a position, which says nothing as a line over time. */
const position = /^(lat|lon|lng|latitude|longitude)$/;
const refreshMs = 5_000;
const maxCharts = 12;
const points = 300;

interface Latest {
  ts_ms: number;
  value: unknown;
  unit?: string;
}

type LatestByKey = Record<string, Latest>;

export default function DevicePage() {
  const { t } = useLingui();
  const { id = '' } = useParams<{ id: string }>();
  const deviceId = decodeURIComponent(id);
  const mayChangeProduct = useMayChangeProduct();
  const [isEditing, setEditing] = useState(false);
  const kind = useDeviceKind();
  const params = { params: { path: { id: deviceId } } };
  const device = useRead(
    ['devices', 'one', deviceId],
    (signal) => unwrap(api.GET('/api/v1/devices/{id}', { ...params, signal })),
    { every: refreshMs },
  );
  const latest = useLatest(deviceId);
  if (!device.data) {
    return (
      <PendingPage
        title={deviceId}
        query={device}
        missing={<EmptyState title={<Trans>There is no device with this id</Trans>} />}
      />
    );
  }
  const data = device.data;
  const mayChange = mayChangeProduct(data.product);
  return (
    <Page
      title={data.name || data.id}
      aside={<DeviceStateBadge state={data.state} />}
      actions={
        <>
          <ShowCall
            method="GET"
            path={`/api/v1/devices/${encodeURIComponent(deviceId)}`}
            ctl={`devices show ${deviceId}`}
          />
          {mayChange && (
            <Button variant="default" leftSection={<IconSettings size={14} />} onClick={() => setEditing(true)}>
              <Trans>Settings</Trans>
            </Button>
          )}
          {mayChange && <CredentialsButton device={data} />}
          {mayChange && <ClaimButton device={data} />}
          {mayChange && <DeleteDevice device={data} />}
        </>
      }
    >
      <PageTabs
        tabs={[
          {
            id: 'overview',
            label: <Trans>Overview</Trans>,
            content: <Overview device={data} latest={latest} />,
          },
          {
            id: 'attributes',
            label: <Trans>Attributes</Trans>,
            content: <DeviceAttributes device={deviceId} mayChange={mayChange} />,
          },
          {
            id: 'commands',
            label: <Trans>Commands</Trans>,
            content: <DeviceCommands device={data} mayChange={mayChange} />,
          },
          { id: 'alarms', label: <Trans>Alarms</Trans>, content: <AlarmList device={deviceId} /> },
          { id: 'log', label: <Trans>Log</Trans>, content: <DeviceLog device={deviceId} /> },
          { id: 'files', label: <Trans>Files</Trans>, content: <FileList device={deviceId} /> },
          {
            id: 'children',
            label: <Trans>Child devices</Trans>,
            isListed: data.gateway,
            content: <DeviceChildren device={deviceId} />,
          },
        ]}
      />
      {isEditing && (
        <ObjectEditor
          kind={kind}
          object={{ ...data, origin: 'api' }}
          title={t`Settings of ${deviceId}`}
          mayChange={mayChange}
          mayDelete={false}
          onClose={() => {
            setEditing(false);
            void device.refetch();
          }}
        />
      )}
    </Page>
  );
}

/** The latest values, kept current by the node's stream. */
function useLatest(deviceId: string): LatestByKey | undefined {
  const key = ['devices', 'latest', deviceId];
  const read = useRead(key, async (signal) => {
    const path = { params: { path: { id: deviceId } } };
    const answer = await unwrap(api.GET('/api/v1/devices/{id}/telemetry/latest', { ...path, signal }));
    return answer.values as LatestByKey;
  });
  useEffect(
    () =>
      openStream({
        path: `/api/v1/devices/${encodeURIComponent(deviceId)}/telemetry/live`,
        onReopen: () => void queryClient.invalidateQueries({ queryKey: ['devices', 'latest', deviceId] }),
        onEvent: ({ type, data }) => {
          if (type === 'lost' || type === 'missing_nodes') {
            // Values may have been skipped, or arrive at a node that has returned.
            void queryClient.invalidateQueries({ queryKey: ['devices', 'latest', deviceId] });
          }
          if (type !== 'telemetry') return;
          const row = data as { ts_ms: number; values: Record<string, unknown> };
          queryClient.setQueryData<LatestByKey>(['devices', 'latest', deviceId], (previous) => {
            const next = { ...previous };
            for (const [name, value] of Object.entries(row.values)) {
              next[name] = { ...next[name], ts_ms: row.ts_ms, value };
            }
            return next;
          });
        },
      }),
    [deviceId],
  );
  return read.data;
}

function shown(value: unknown): string {
  if (typeof value === 'number') return formatNumber(value, 6);
  return typeof value === 'string' ? value : JSON.stringify(value);
}

function LatestValues({ latest }: { latest: LatestByKey | undefined }) {
  if (latest === undefined) return <Loading />;
  const rows = Object.entries(latest).sort(([a], [b]) => a.localeCompare(b));
  if (rows.length === 0) {
    return (
      <EmptyState title={<Trans>No values yet</Trans>}>
        <Trans>The values appear here as soon as the device reports them.</Trans>
      </EmptyState>
    );
  }
  return (
    <table className="data-table">
      <tbody>
        {rows.map(([key, { ts_ms, value, unit }]) => (
          <tr key={key}>
            <th scope="row">{key}</th>
            <td className="right">
              {shown(value)}
              {unit !== undefined && ` ${unit}`}
            </td>
            <td className="right dimmed">
              <Ago ms={ts_ms} />
            </td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}

function History({ deviceId, latest }: { deviceId: string; latest: LatestByKey | undefined }) {
  const { t } = useLingui();
  const { span, spanMs, setSpan } = useSpan('1h');
  const keys = Object.entries(latest ?? {})
    .filter(([key, { value }]) => typeof value === 'number' && !position.test(key))
    .map(([key]) => key)
    .sort()
    .slice(0, maxCharts);
  const intervals = useRead(
    ['devices', 'intervals', deviceId, span, keys.join(',')],
    async (signal) => {
      const to = Date.now();
      const answer = await unwrap(
        api.GET('/api/v1/devices/{id}/telemetry/intervals', {
          params: {
            path: { id: deviceId },
            query: { keys: keys.join(','), from_ms: to - spanMs, to_ms: to, interval_ms: Math.ceil(spanMs / points) },
          },
          signal,
        }),
      );
      return byKey(answer.data);
    },
    { enabled: keys.length > 0, every: Math.max(refreshMs, spanMs / points), keep: true },
  );
  if (keys.length === 0) {
    return (
      <div className="panel">
        <EmptyState title={<Trans>No numbers yet</Trans>}>
          <Trans>Charts appear here as soon as the device reports numbers.</Trans>
        </EmptyState>
      </div>
    );
  }
  return (
    <>
      <div className="row">
        <SpanSelect value={span} onChange={setSpan} />
      </div>
      <div className="grid">
        {keys.map((key) => {
          const line = intervals.data?.get(key);
          return (
            <Panel key={key} title={key}>
              <Chart
                label={t`${key} over time`}
                times={line?.times ?? []}
                isAutoScaled={isFarFromZero(line?.values ?? [])}
                syncKey={`device-${deviceId}`}
                format={(value) => formatNumber(value, 3)}
                tick={formatTick}
                series={[{ label: key, values: line?.values ?? [] }]}
              />
            </Panel>
          );
        })}
      </div>
    </>
  );
}

function byKey(rows: Schemas['KeyInterval'][]): Map<string, { times: number[]; values: (number | null)[] }> {
  const lines = new Map<string, { times: number[]; values: (number | null)[] }>();
  for (const row of rows) {
    const line = lines.get(row.key) ?? { times: [], values: [] };
    const value = (row.values as { avg?: number | null }).avg;
    line.times.push(row.ts_ms);
    line.values.push(value ?? null);
    lines.set(row.key, line);
  }
  return lines;
}

function DeleteDevice({ device }: { device: Schemas['Device'] }) {
  const { t } = useLingui();
  const [, navigate] = useLocation();
  const [isAsking, setAsking] = useState(false);
  return (
    <>
      <Button variant="default" leftSection={<IconTrash size={14} />} onClick={() => setAsking(true)}>
        <Trans>Delete</Trans>
      </Button>
      {isAsking && (
        <ConfirmDeletion
          title={<Trans>Delete {device.name || device.id}?</Trans>}
          action={<Trans>Delete the device</Trans>}
          call={{
            path: `/api/v1/devices/${encodeURIComponent(device.id)}`,
            ctl: `devices delete ${device.id}`,
          }}
          onClose={() => setAsking(false)}
          invalidates={[['devices'], ['device-counts']]}
          message={t`${device.id} was deleted.`}
          onDeleted={() => navigate('/devices')}
        >
          <Text size="sm">
            <Trans>
              This deletes the device {device.id} with its credentials, attributes, telemetry, commands and alarms. Its
              connection ends.
            </Trans>
          </Text>
        </ConfirmDeletion>
      )}
    </>
  );
}

function Overview({ device, latest }: { device: Schemas['Device']; latest: LatestByKey | undefined }) {
  return (
    <div className="page">
      <div className="grid">
        <Panel title={<Trans>Device</Trans>}>
          <Facts
            rows={[
              [
                <Trans>Id</Trans>,
                <span className="row">
                  <span className="mono">{device.id}</span>
                  <Copy value={device.id} />
                </span>,
              ],
              [
                <Trans>Product</Trans>,
                <Link href={`/products/${encodeURIComponent(device.product)}`} className="link">
                  {device.product}
                </Link>,
              ],
              [<Trans>Last seen</Trans>, <Ago ms={device.last_seen_at_ms} />],
              [<Trans>Created</Trans>, <Ago ms={device.created_at_ms} />],
              [<Trans>May connect</Trans>, device.enabled ? <Trans>yes</Trans> : <Trans>no</Trans>],
              [
                <Trans>Gateway</Trans>,
                device.parent ? (
                  <Link href={`/devices/${encodeURIComponent(device.parent)}`} className="link">
                    {device.parent}
                  </Link>
                ) : (
                  '–'
                ),
              ],
              [<Trans>Group</Trans>, device.group ?? '–'],
              [
                <Trans>Credentials</Trans>,
                device.credentials.map(({ type, name }) => [type, name].filter(Boolean).join(' ')).join(', ') || '–',
              ],
              ...Object.entries(device.tags).map(([key, value]): [string, string] => [key, value]),
            ]}
          />
        </Panel>
        <Panel title={<Trans>Latest values</Trans>}>
          <LatestValues latest={latest} />
        </Panel>
      </div>
      <DeviceFirmware device={device.id} />
      <History deviceId={device.id} latest={latest} />
    </div>
  );
}

/** Whether values are so far from zero that an axis with it would show them as a flat line, such as those of a meter. */
function isFarFromZero(values: (number | null)[]): boolean {
  const numbers = values.filter((value) => value !== null);
  if (numbers.length === 0) return false;
  const [low, high] = [Math.min(...numbers), Math.max(...numbers)];
  return low > 0 && high - low < high * 0.1;
}
