import { ActionIcon, Button, Drawer, Group, Select, Stack, Text, TextInput, Tooltip } from '@mantine/core';
import { useDebouncedValue } from '@mantine/hooks';
import { notifications } from '@mantine/notifications';
import { Trans, useLingui } from '@lingui/react/macro';
import { IconDownload, IconLink, IconSearch, IconTrash } from '@tabler/icons-react';
import { useState, type ReactNode } from 'react';
import { Link, useLocation, useSearchParams } from 'wouter';
import { useChange, type Schemas } from '../../api/client';
import { objectPath, send, useList, useObject } from '../../api/objects';
import { mayInNamespace, useCaller, type Caller } from '../../api/session';
import { formatBytes, formatTime } from '../../format';
import { ConfirmDeletion } from '../../ui/confirm-deletion';
import { CopyText } from '../../ui/copy';
import { downloadFrom } from '../../ui/download';
import { DataTable, pagesOf, useNodeOrder, type Column, type NodeOrder } from '../../ui/data-table';
import { NamespaceSelect } from '../../ui/object-list';
import { Facts } from '../../ui/page';
import { ShowCall } from '../../ui/show-call';
import { EmptyState, ErrorState, Loading } from '../../ui/states';
import { Ago } from '../../ui/time';
import { useUrlState } from '../../ui/url-state';
import { ExportSummary, FileExports } from './file-exports';

/** With its node in a cluster. */
export type FileInfo = Schemas['FileInfo'] & { node?: string };

export const filesPath = '/api/v1/files';

const nodeOrder: NodeOrder = {
  name: 'name',
  size: 'size',
  owner: 'owner',
  file_id: 'file_id',
  completed: 'completed_at_ms',
  expires: 'expires_at_ms',
};

const refreshMs = 5_000;
const linkForDownloadS = 60;
/** A viewer's download is in memory as a whole. */
const maxViewerBytes = 512 * 1024 * 1024;

/** Whoever sent a file: a device, a client, a person or an API key. */
export function FileOwnerName({ file }: { file: FileInfo }) {
  const { owner } = file;
  if (owner.kind === 'device') {
    return (
      <Link href={`/devices/${encodeURIComponent(owner.id)}`} className="link">
        {owner.id}
      </Link>
    );
  }
  if (owner.kind === 'client') {
    return (
      <Link href={`/clients/${encodeURIComponent(owner.id)}`} className="link">
        {owner.id}
      </Link>
    );
  }
  return <>{owner.id}</>;
}

export function mayChangeFile(caller: Caller, { owner }: Pick<FileInfo, 'owner'>): boolean {
  return mayInNamespace(caller, 'operator', owner.namespace);
}

/** Downloads through a link that is valid for a moment, so that the browser can write to disk as it reads. */
async function download(file: FileInfo, caller: Caller): Promise<void> {
  if (mayChangeFile(caller, file)) {
    const link = document.createElement('a');
    link.download = file.name;
    const signed = await send<Schemas['FileLink']>('POST', `${objectPath(filesPath, file.id)}/links`, {
      body: { expires_in_s: linkForDownloadS },
    });
    link.href = signed.path;
    link.click();
    return;
  }
  await downloadFrom(`${objectPath(filesPath, file.id)}/content`, file.name);
}

export function useDownload() {
  const { t } = useLingui();
  const caller = useCaller();
  return (file: FileInfo) => {
    if (!mayChangeFile(caller, file) && (file.size ?? 0) > maxViewerBytes) {
      notifications.show({
        color: 'red',
        message: t`This file is too large for a viewer; use tidegate ctl files download.`,
      });
      return;
    }
    download(file, caller).catch((error: Error) => notifications.show({ color: 'red', message: error.message }));
  };
}

/** The node that has the file. */
export const nodeColumn = (header: string): Column<FileInfo> => ({
  id: 'node',
  header,
  sort: (file) => file.node,
  cell: (file) => file.node,
});

/** Complete files. */
export function FileList({ device }: { device?: string }) {
  const { t } = useLingui();
  const caller = useCaller();
  const [location] = useLocation();
  const [parameters] = useSearchParams();
  const [owner, setOwner] = useUrlState('owner');
  const [product, setProduct] = useUrlState('product');
  const [namespace, setNamespace] = useUrlState('namespace');
  const [exportState, setExportState] = useUrlState('export');
  const [opened, setOpened] = useUrlState('file');
  const [filters] = useDebouncedValue({ owner: device ?? owner.trim(), product, namespace, export: exportState }, 300);
  const sort = useNodeOrder(nodeOrder);
  const products = useList<{ id: string }>('/api/v1/products', {}, { enabled: device === undefined });
  const list = useList<FileInfo>(
    filesPath,
    { state: 'complete', ...filters, sort },
    { every: refreshMs, pageSize: 200 },
  );
  const [deleting, setDeleting] = useState<FileInfo>();
  const startDownload = useDownload();
  const href = (file: FileInfo) => {
    const next = new URLSearchParams(parameters);
    next.set('file', file.id);
    return `${location}?${next.toString()}`;
  };
  const isCluster = list.rows?.some((file) => file.node !== undefined) ?? false;
  const columns: Column<FileInfo>[] = [
    {
      id: 'name',
      header: t`Name`,
      sort: (file) => file.name,
      cell: (file) => (
        <Link href={href(file)} className="link">
          {file.name}
        </Link>
      ),
    },
    ...(isCluster ? [nodeColumn(t`Node`)] : []),
    {
      id: 'size',
      header: t`Size`,
      align: 'right',
      sort: (file) => file.size,
      cell: (file) => formatBytes(file.size ?? 0),
    },
    { id: 'owner', header: t`Sent by`, sort: (file) => file.owner.id, cell: (file) => <FileOwnerName file={file} /> },
    { id: 'file_id', header: t`File id`, cell: (file) => <span className="mono">{file.file_id}</span>, isHidden: true },
    { id: 'type', header: t`Type`, cell: (file) => file.content_type ?? '–', isHidden: true },
    {
      id: 'completed',
      header: t`Received`,
      sort: (file) => file.completed_at_ms,
      cell: (file) => <Ago ms={file.completed_at_ms} />,
    },
    { id: 'exports', header: t`Export`, cell: (file) => <ExportSummary file={file} /> },
    {
      id: 'expires',
      header: t`Removed`,
      sort: (file) => file.expires_at_ms,
      cell: (file) => (file.expires_at_ms == null ? <Trans>never</Trans> : formatTime(file.expires_at_ms)),
    },
    {
      id: 'action',
      header: t`Action`,
      cell: (file) => (
        <span className="row">
          <Tooltip label={t`Download`}>
            <ActionIcon aria-label={t`Download ${file.name}`} size="sm" onClick={() => startDownload(file)}>
              <IconDownload size={15} />
            </ActionIcon>
          </Tooltip>
          {mayChangeFile(caller, file) && (
            <Tooltip label={t`Delete`}>
              <ActionIcon aria-label={t`Delete ${file.name}`} size="sm" onClick={() => setDeleting(file)}>
                <IconTrash size={15} />
              </ActionIcon>
            </Tooltip>
          )}
        </span>
      ),
    },
  ];
  const isFiltered = Boolean(owner || product || namespace || exportState);
  return (
    <>
      <DataTable
        name="files"
        label={t`Files`}
        columns={device ? columns.filter((column) => column.id !== 'owner') : columns}
        nodeOrder={nodeOrder}
        rowKey={(file) => file.id}
        rowHref={href}
        {...pagesOf(list)}
        toolbar={
          device === undefined && (
            <>
              <TextInput
                aria-label={t`Sent by`}
                placeholder={t`Sent by`}
                leftSection={<IconSearch size={14} />}
                w={200}
                value={owner}
                onChange={(event) => setOwner(event.currentTarget.value)}
              />
              <Select
                aria-label={t`Product`}
                placeholder={t`Any product`}
                clearable
                searchable
                w={170}
                value={product || null}
                onChange={(value) => setProduct(value ?? '')}
                data={(products.rows ?? []).map(({ id }) => id)}
              />
              <Select
                aria-label={t`Export`}
                placeholder={t`Any export`}
                clearable
                w={150}
                value={exportState || null}
                onChange={(value) => setExportState(value ?? '')}
                data={[
                  { value: 'failed', label: t`failed` },
                  { value: 'waiting', label: t`waiting` },
                  { value: 'running', label: t`running` },
                  { value: 'complete', label: t`exported` },
                ]}
              />
              <NamespaceSelect value={namespace} onChange={setNamespace} />
            </>
          )
        }
        empty={
          isFiltered ? (
            <EmptyState title={<Trans>Nothing matches</Trans>}>
              <Trans>Change the search or the filters.</Trans>
            </EmptyState>
          ) : (
            <EmptyState title={<Trans>No files yet</Trans>}>
              <Trans>Devices send files over MQTT, programs over HTTP. Or drop files on this page.</Trans>
            </EmptyState>
          )
        }
      />
      {opened && <FileDrawer id={opened} onClose={() => setOpened('')} onDelete={setDeleting} />}
      {deleting && (
        <DeleteFile
          file={deleting}
          onClose={() => setDeleting(undefined)}
          onDeleted={() => {
            setDeleting(undefined);
            setOpened('');
          }}
        />
      )}
    </>
  );
}

export function DeleteFile({
  file,
  onClose,
  onDeleted,
}: {
  file: FileInfo;
  onClose: () => void;
  onDeleted: () => void;
}) {
  const { t } = useLingui();
  const isTransfer = file.state === 'receiving';
  return (
    <ConfirmDeletion
      title={isTransfer ? <Trans>Cancel the transfer of {file.name}?</Trans> : <Trans>Delete {file.name}?</Trans>}
      action={isTransfer ? <Trans>Cancel the transfer</Trans> : <Trans>Delete the file</Trans>}
      call={{
        path: objectPath(filesPath, file.id),
        ctl: isTransfer ? `transfers cancel ${file.id}` : `files delete ${file.id}`,
      }}
      onClose={onClose}
      invalidates={[[filesPath]]}
      message={isTransfer ? t`The transfer was cancelled.` : t`${file.name} was deleted.`}
      onDeleted={onDeleted}
    >
      <Text size="sm">
        {isTransfer ? (
          <Trans>
            This removes the {formatBytes(file.received_bytes)} that {file.owner.id} has sent. A sender that continues
            gets an error.
          </Trans>
        ) : (
          <Trans>
            This deletes the file of {file.owner.id} with {formatBytes(file.size ?? 0)}. Links to it end.
          </Trans>
        )}
      </Text>
    </ConfirmDeletion>
  );
}

const lives = ['3600', '86400', '604800', '2592000'];

function FileDrawer({
  id,
  onClose,
  onDelete,
}: {
  id: string;
  onClose: () => void;
  onDelete: (file: FileInfo) => void;
}) {
  const { t } = useLingui();
  const caller = useCaller();
  const file = useObject<FileInfo>(filesPath, id, { every: refreshMs });
  const [life, setLife] = useState('86400');
  const path = `${objectPath(filesPath, id)}/links`;
  const link = useChange(() => send<Schemas['FileLink']>('POST', path, { body: { expires_in_s: Number(life) } }), []);
  const startDownload = useDownload();
  const names: Record<string, string> = {
    '3600': t`1 hour`,
    '86400': t`1 day`,
    '604800': t`7 days`,
    '2592000': t`30 days`,
  };
  const data = file.data;
  return (
    <Drawer opened onClose={onClose} position="right" size="lg" title={data?.name ?? id}>
      {file.error && !data ? (
        <ErrorState error={file.error} />
      ) : !data ? (
        <Loading />
      ) : (
        <Stack gap="md">
          <Facts
            rows={[
              [<Trans>Size</Trans>, formatBytes(data.size ?? 0)],
              [<Trans>Sent by</Trans>, <FileOwnerName file={data} />],
              [<Trans>File id</Trans>, <span className="mono">{data.file_id}</span>],
              [<Trans>Id</Trans>, <span className="mono">{data.id}</span>],
              ...(data.node === undefined ? [] : ([[<Trans>Node</Trans>, data.node]] as [ReactNode, ReactNode][])),
              [<Trans>Type</Trans>, data.content_type ?? '–'],
              [<Trans>SHA-256</Trans>, <span className="mono">{data.checksum ?? '–'}</span>],
              [<Trans>Begun</Trans>, formatTime(data.created_at_ms)],
              [<Trans>Complete</Trans>, data.completed_at_ms == null ? '–' : formatTime(data.completed_at_ms)],
              [
                <Trans>Removed</Trans>,
                data.expires_at_ms == null ? <Trans>never</Trans> : formatTime(data.expires_at_ms),
              ],
            ]}
          />
          {data.user_data != null && <pre className="json">{JSON.stringify(data.user_data, null, 2)}</pre>}
          {data.state === 'complete' && <FileExports file={data} />}
          {mayChangeFile(caller, data) && data.state === 'complete' && (
            <Stack gap="xs">
              <Group gap="xs" align="flex-end">
                <Select
                  label={t`Link that needs no login, valid for`}
                  w={290}
                  allowDeselect={false}
                  value={life}
                  onChange={(value) => setLife(value ?? '86400')}
                  data={lives.map((value) => ({ value, label: names[value] ?? value }))}
                />
                <Button
                  variant="default"
                  leftSection={<IconLink size={14} />}
                  loading={link.isPending}
                  onClick={() => link.mutate(undefined)}
                >
                  <Trans>Create a link</Trans>
                </Button>
              </Group>
              {link.error && (
                <Text size="sm" c="var(--tg-critical)" role="alert">
                  {link.error.message}
                </Text>
              )}
              {link.data && (
                <>
                  <CopyText text={`${window.location.origin}${link.data.path}`} />
                  <Text size="xs" c="dimmed">
                    <Trans>Valid until {formatTime(link.data.expires_at_ms)}; deleting the file ends it.</Trans>
                  </Text>
                </>
              )}
            </Stack>
          )}
          <div className="drawer-footer">
            <ShowCall
              method="GET"
              path={`${objectPath(filesPath, id)}/content`}
              ctl={`files download ${id} ${data.name}`}
            />
            <div className="row wrap">
              {mayChangeFile(caller, data) && (
                <Button variant="default" leftSection={<IconTrash size={14} />} onClick={() => onDelete(data)}>
                  <Trans>Delete</Trans>
                </Button>
              )}
              <Button leftSection={<IconDownload size={14} />} onClick={() => startDownload(data)}>
                <Trans>Download</Trans>
              </Button>
            </div>
          </div>
        </Stack>
      )}
    </Drawer>
  );
}
