import { ActionIcon, Progress, Tooltip } from '@mantine/core';
import { Trans, useLingui } from '@lingui/react/macro';
import { IconPlayerPause, IconPlayerPlay, IconX } from '@tabler/icons-react';
import type { ReactNode } from 'react';
import { pauseUpload, removeUpload, resumeUpload, useUploads, type Upload } from '../../api/upload';
import { formatBytes, formatDuration, formatNumber } from '../../format';
import { Panel } from '../../ui/page';

/** Uploads of this page. */
export function Uploads() {
  const uploads = useUploads();
  if (uploads.length === 0) return null;
  return (
    <Panel title={<Trans>Uploads of this page</Trans>}>
      <div className="uploads" aria-live="polite">
        {uploads.map((upload) => (
          <UploadRow key={upload.id} upload={upload} />
        ))}
      </div>
    </Panel>
  );
}

function UploadRow({ upload }: { upload: Upload }) {
  const { t } = useLingui();
  const { id, name, size, sentBytes, state, bytesPerSecond } = upload;
  const share = size === 0 ? 1 : sentBytes / size;
  const isActive = state === 'running' || state === 'waiting';
  const button = (label: string, icon: ReactNode, onClick: () => void) => (
    <Tooltip label={label}>
      <ActionIcon aria-label={`${label}: ${name}`} onClick={onClick}>
        {icon}
      </ActionIcon>
    </Tooltip>
  );
  return (
    <div className="upload">
      <div className="row">
        <strong className="grow ellipsis">{name}</strong>
        {isActive && button(t`Pause`, <IconPlayerPause size={15} />, () => pauseUpload(id))}
        {(state === 'paused' || state === 'failed') &&
          button(t`Continue`, <IconPlayerPlay size={15} />, () => resumeUpload(id))}
        {button(
          state === 'done' ? t`Remove from this list` : t`Cancel`,
          <IconX size={15} />,
          () => void removeUpload(id),
        )}
      </div>
      <Progress
        value={share * 100}
        color={state === 'failed' ? 'red' : state === 'paused' ? 'gray' : undefined}
        aria-label={name}
      />
      <div className="field-help">
        {formatBytes(sentBytes)} / {formatBytes(size)} ({formatNumber(share * 100)} %) ·{' '}
        {state === 'done' ? (
          <Trans>complete</Trans>
        ) : state === 'paused' ? (
          <Trans>paused</Trans>
        ) : state === 'failed' ? (
          <span className="state-critical">{upload.problem}</span>
        ) : state === 'waiting' ? (
          <span className="state-warning">
            <Trans>waits, and tries again: {upload.problem}</Trans>
          </span>
        ) : bytesPerSecond > 0 ? (
          <Trans>
            {formatBytes(bytesPerSecond)} per second, {formatDuration((size - sentBytes) / bytesPerSecond)} left
          </Trans>
        ) : (
          <Trans>begins</Trans>
        )}
      </div>
    </div>
  );
}
