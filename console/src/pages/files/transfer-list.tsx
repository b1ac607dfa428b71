import { Button, Group, Progress } from '@mantine/core';
import { notifications } from '@mantine/notifications';
import { Trans, useLingui } from '@lingui/react/macro';
import { IconPlayerPause, IconPlayerPlay, IconX } from '@tabler/icons-react';
import { useState } from 'react';
import { useChange } from '../../api/client';
import { objectPath, send, useList } from '../../api/objects';
import { mayInNamespace, useCaller } from '../../api/session';
import { formatBytes, formatNumber } from '../../format';
import { DataTable, pagesOf, useNodeOrder, type Column, type NodeOrder } from '../../ui/data-table';
import { StateBadge } from '../../ui/state-badge';
import { EmptyState } from '../../ui/states';
import { Ago } from '../../ui/time';
import { DeleteFile, FileOwnerName, filesPath, mayChangeFile, nodeColumn, type FileInfo } from './file-list';

const nodeOrder: NodeOrder = {
  name: 'name',
  owner: 'owner',
  received: 'received_bytes',
  begun: 'created_at_ms',
  file_id: 'file_id',
};

const refreshMs = 1_500;

/** Files that are being received. */
export function TransferList() {
  const { t } = useLingui();
  const caller = useCaller();
  const sort = useNodeOrder(nodeOrder);
  const list = useList<FileInfo>(filesPath, { state: 'receiving', sort }, { every: refreshMs, pageSize: 200 });
  const [cancelling, setCancelling] = useState<FileInfo>();
  const change = useChange(
    (file: FileInfo) => send('POST', `${objectPath(filesPath, file.id)}/${file.is_paused ? 'resume' : 'pause'}`),
    [[filesPath]],
  );
  const pauseOrResume = (file: FileInfo) =>
    change.mutate(file, {
      onSuccess: () =>
        notifications.show({
          message: file.is_paused
            ? t`The transfer of ${file.name} continues.`
            : t`The transfer of ${file.name} is paused.`,
        }),
      onError: (error) => notifications.show({ color: 'red', message: error.message }),
    });
  const isCluster = list.rows?.some((file) => file.node !== undefined) ?? false;
  const columns: Column<FileInfo>[] = [
    { id: 'name', header: t`Name`, sort: (file) => file.name, cell: (file) => file.name },
    ...(isCluster ? [nodeColumn(t`Node`)] : []),
    {
      id: 'state',
      header: t`State`,
      sort: (file) => (file.is_paused ? 1 : 0),
      cell: (file) =>
        file.is_paused ? (
          <StateBadge health="warning">
            <Trans>paused</Trans>
          </StateBadge>
        ) : (
          <StateBadge health="good">
            <Trans>receiving</Trans>
          </StateBadge>
        ),
    },
    {
      id: 'progress',
      header: t`Progress`,
      width: 220,
      sort: (file) => (file.size ? file.received_bytes / file.size : 0),
      cell: (file) =>
        file.size === null ? (
          <Trans>size not known</Trans>
        ) : (
          <span className="row">
            <Progress
              className="grow"
              value={file.size === 0 ? 100 : (file.received_bytes / file.size) * 100}
              aria-label={file.name}
            />
            {formatNumber(file.size === 0 ? 100 : (file.received_bytes / file.size) * 100)} %
          </span>
        ),
    },
    { id: 'owner', header: t`Sent by`, sort: (file) => file.owner.id, cell: (file) => <FileOwnerName file={file} /> },
    {
      id: 'received',
      header: t`Received`,
      align: 'right',
      sort: (file) => file.received_bytes,
      cell: (file) =>
        file.size === null
          ? formatBytes(file.received_bytes)
          : `${formatBytes(file.received_bytes)} / ${formatBytes(file.size)}`,
    },
    {
      id: 'begun',
      header: t`Begun`,
      sort: (file) => file.created_at_ms,
      cell: (file) => <Ago ms={file.created_at_ms} />,
    },
    { id: 'file_id', header: t`File id`, cell: (file) => <span className="mono">{file.file_id}</span>, isHidden: true },
    ...(mayInNamespace(caller, 'operator')
      ? [
          {
            id: 'action',
            header: t`Action`,
            cell: (file: FileInfo) =>
              mayChangeFile(caller, file) && (
                <Group gap={6} wrap="nowrap">
                  <Button
                    size="compact-xs"
                    variant="default"
                    leftSection={file.is_paused ? <IconPlayerPlay size={12} /> : <IconPlayerPause size={12} />}
                    disabled={change.isPending}
                    onClick={() => pauseOrResume(file)}
                  >
                    {file.is_paused ? <Trans>Resume</Trans> : <Trans>Pause</Trans>}
                  </Button>
                  <Button
                    size="compact-xs"
                    variant="default"
                    leftSection={<IconX size={12} />}
                    onClick={() => setCancelling(file)}
                  >
                    <Trans>Cancel</Trans>
                  </Button>
                </Group>
              ),
          },
        ]
      : []),
  ];
  return (
    <>
      <DataTable
        name="transfers"
        label={t`Transfers`}
        columns={columns}
        nodeOrder={nodeOrder}
        rowKey={(file) => file.id}
        {...pagesOf(list)}
        empty={
          <EmptyState title={<Trans>Nothing is being sent</Trans>}>
            <Trans>Files appear here while devices and programs send them, with what is still missing.</Trans>
          </EmptyState>
        }
      />
      {cancelling && (
        <DeleteFile
          file={cancelling}
          onClose={() => setCancelling(undefined)}
          onDeleted={() => setCancelling(undefined)}
        />
      )}
    </>
  );
}
